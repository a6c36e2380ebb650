"""Outrider: exact speculative decoding for MLA language models.

    from outrider import LLM, SamplingParams
    with LLM("models/tiny-v3-mtp3") as llm:
        for answer in llm.generate(["Once upon a time"], SamplingParams(max_tokens=32)):
            print(answer.outputs[0].text)
"""

from outrider import _logging
from outrider._core import (
    InvalidArgumentError,
    NotFoundError,
    OutriderError,
    OverloadedError,
    UnavailableError,
    __version__,
)
from outrider.async_llm import AsyncLLM
from outrider.llm import LLM
from outrider.outputs import CompletionOutput, Logprob, RequestOutput, RequestStats, Speculation
from outrider.sampling_params import SamplingParams, StructuredOutputsParams
from outrider.server import RunningServer, serve
from outrider.tokenizer import Tokenizer

_logging.start()

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "InvalidArgumentError",
    "Logprob",
    "NotFoundError",
    "OutriderError",
    "OverloadedError",
    "RequestOutput",
    "RequestStats",
    "RunningServer",
    "SamplingParams",
    "Speculation",
    "StructuredOutputsParams",
    "Tokenizer",
    "UnavailableError",
    "__version__",
    "serve",
]
