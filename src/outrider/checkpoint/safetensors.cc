#include "outrider/checkpoint/safetensors.h"
