"""Offline evaluation with lm_eval (EleutherAI's lm-evaluation-harness):

    python -m outrider.lm_eval --model outrider --model_args pretrained=DIR --tasks TASKS ...

lm_eval finds only models that it has itself, so this command adds `outrider` and then is lm_eval's own
command. Programs import this module before they call lm_eval.simple_evaluate(model="outrider", ...).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows

from outrider import LLM, RequestOutput, SamplingParams

# Arguments of tasks that are no sampling fields here: greedy is temperature 0, and there always is a cache.
_WITHOUT_MEANING = ("do_sample", "use_cache")
_DEVICE_OF_NOBODY = "cuda:0"


@register_model("outrider")
class OutriderLM(TemplateLM):
    """A model for lm_eval. `pretrained` names it, other arguments are LLM's (docs/python.md)."""

    def __init__(
        self,
        pretrained: str | os.PathLike[str],
        *,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        device: str | None = None,
        **options: Any,
    ) -> None:
        """`batch_size` and `max_batch_size`, which lm_eval gives every model, change nothing: the engine
        batches what it is asked. `max_length` is max_model_len. `device` is LLM's, but for what lm_eval
        gives where nobody chose: then a GPU is taken where there is one."""
        super().__init__()
        if max_length is not None:
            options["max_model_len"] = max_length
        if device != _DEVICE_OF_NOBODY:
            options["device"] = device
        self._llm = LLM(pretrained, **options)
        self._name = os.fspath(pretrained)
        self._tokens = self._llm.get_tokenizer()
        self.max_gen_toks = max_gen_toks

    @property
    def max_length(self) -> int:
        return self._llm.max_model_len

    @property
    def eot_token_id(self) -> int:
        end = self._tokens.eos_token_id
        if end is None:
            raise ValueError(f"{self._name}: the tokenizer has no end token")
        return end

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that begins with nothing: BOS, where the model has it."""
        begin = self._tokens.bos_token_id
        return self.eot_token_id if begin is None else begin

    @property
    def tokenizer_name(self) -> str:
        return self._name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self._tokens.chat_template

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        text: str = self._tokens.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return text

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """As the tokenizer does it, but with no second BOS where a chat template wrote one."""
        if add_special_tokens is None:
            begin = self._tokens.bos_token
            add_special_tokens = begin is None or not string.startswith(begin)
        return self._tokens.encode(string, add_special_tokens)

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        """Scores of continuations, as generation would give them: bit for bit."""
        prompts = []
        answers = []
        for texts, context, continuation in requests:
            if not continuation:
                raise ValueError(f"the continuation {texts[1]!r} has no token after {texts[0][-40:]!r}")
            room = max(1, self.max_length - len(continuation))
            prompts.append((context or [self.prefix_token_id])[-room:])
            answers.append(continuation)
        scores = self._llm.score(prompts, answers, logprobs=1, use_tqdm=not disable_tqdm)
        results = [_sum_and_greedy(score) for score in scores]
        for (texts, _, _), result in zip(requests, results):
            self.cache_hook.add_partial("loglikelihood", texts, result)
        return results

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-probability of whole texts, by the path of prompts. What is longer than the context is
        cut into pieces that follow each other, each with as much before it as fits."""
        windows = []
        owners = []
        for number, request in enumerate(requests):
            (text,) = request.args
            for context, wanted in get_rolling_token_windows(
                token_list=self.tok_encode(text, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 2,  # the last token, and one that is generated
                context_len=1,
            ):
                windows.append((context + wanted[-1:], len(wanted)))
                owners.append(number)
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        outputs = self._llm.generate([ids for ids, _ in windows], params, use_tqdm=not disable_tqdm)
        sums = [0.0] * len(requests)
        for owner, (ids, count), output in zip(owners, windows, outputs):
            assert output.prompt_logprobs is not None
            places = range(len(ids) - count, len(ids))
            for place in places:
                position = output.prompt_logprobs[place]
                assert position is not None
                sums[owner] += position[ids[place]].logprob
        for request, total in zip(requests, sums):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        prompts = []
        params = []
        for request in requests:
            context, asked = request.args
            fields = self._sampling_fields(asked)
            params.append(SamplingParams(**fields))
            room = max(1, self.max_length - fields["max_tokens"])
            prompts.append(self.tok_encode(context)[-room:])
        outputs = self._llm.generate(prompts, params, use_tqdm=not disable_tqdm)
        texts = [output.outputs[0].text for output in outputs]
        for request, text in zip(requests, texts):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def _sampling_fields(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        fields: dict[str, Any] = dict(normalize_gen_kwargs(dict(asked), self.max_gen_toks))
        for name in _WITHOUT_MEANING:
            fields.pop(name, None)
        fields.setdefault("temperature", 0.0)
        fields["max_tokens"] = fields.pop("max_gen_toks")
        fields["stop"] = [text for text in fields.pop("until") if text]
        return fields


def _sum_and_greedy(score: RequestOutput) -> tuple[float, bool]:
    """The sum of an answer's log-probabilities, and whether each of its tokens was the likeliest."""
    output = score.outputs[0]
    assert output.logprobs is not None and output.cumulative_logprob is not None
    # One alternative was asked for: there is none where it is the token itself.
    return output.cumulative_logprob, all(len(position) == 1 for position in output.logprobs)


if __name__ == "__main__":
    cli_evaluate()
