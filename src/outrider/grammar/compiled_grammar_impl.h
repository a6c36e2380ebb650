// What a compiled grammar is made of; only for the sources of this room.
#pragma once

#include <xgrammar/compiler.h>

#include "outrider/grammar/compiled_grammar.h"

namespace outrider {

struct CompiledGrammar::Impl {
  xgrammar::CompiledGrammar grammar;
};

}  // namespace outrider
