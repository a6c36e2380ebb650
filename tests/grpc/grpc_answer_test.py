"""What vllm.Inference answers, against the HTTP API of the same server: `outrider serve` with the bundled model.

    grpc_answer_test.py --outrider build/.../outrider

Texts, token ids and log-probabilities are those that HTTP gives for the same request.
"""

import argparse
import concurrent.futures
import struct
import sys
import unittest

import grpc_stubs
from grpc_stubs import pb

PROGRAM = ""
PROMPTS = ["1 + 1 =", "Tom has 12 apples and buys 30 more. ", "A", "What is 9 times 8? Answer:"]
Finish = pb.FinishInfo


def as_float(number):
    """What a 32-bit float keeps of a number."""
    return struct.unpack("f", struct.pack("f", number))[0]


def request(prompt, max_new_tokens=24, **fields):
    """`prompt`: a text or token ids. The answer tells its tokens."""
    given = {"text": prompt} if isinstance(prompt, str) else {"token_ids": pb.TokenIds(ids=prompt)}
    stopping = fields.pop("stopping", {})
    response = fields.pop("response", {})
    return pb.GenerateRequest(stopping=pb.StoppingCriteria(max_new_tokens=max_new_tokens, **stopping),
                              response=pb.ResponseOptions(output_token_ids=True, **response), **given, **fields)


class Whole:
    """The answers of a stream by index, put together."""

    def __init__(self, messages):
        self.outputs, self.prompt = {}, None
        for number, message in enumerate(messages):
            if message.HasField("prompt_info"):
                assert self.prompt is None and number == 0, "prompt_info comes once, at first"
                self.prompt = message.prompt_info
            if message.HasField("outputs"):
                so_far = self.outputs.setdefault(message.outputs.index, pb.SequenceOutput())
                assert not so_far.HasField("finish_info"), "nothing follows the end"
                text = so_far.text + message.outputs.text
                num_tokens = so_far.num_tokens + message.outputs.num_tokens
                so_far.MergeFrom(message.outputs)
                so_far.text, so_far.num_tokens = text, num_tokens


class AnswerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = grpc_stubs.Server(PROGRAM)
        cls.server.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def http(self, prompt, max_tokens=24, **fields):
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "return_token_ids": True} | fields
        return self.server.http("POST", "/v1/completions", body)["choices"]

    def both(self, asked):
        """The answer at once, which equals that of a stream."""
        answer = self.server.inference.Generate(asked)
        whole = Whole(self.server.inference.GenerateStream(asked))
        self.assertEqual(list(whole.outputs), [0])
        self.assertEqual(whole.prompt, answer.prompt_info)
        self.assertEqual(whole.outputs[0], answer.outputs)
        return answer

    def expect_equal(self, asked, **http_fields):
        """Generate, GenerateStream and HTTP say the same; what they say."""
        prompt = asked.text or list(asked.token_ids.ids)
        answer = self.both(asked)
        choice = self.http(prompt, asked.stopping.max_new_tokens, **http_fields)[0]
        output = answer.outputs
        self.assertEqual(list(output.token_ids), choice["token_ids"])
        self.assertEqual(output.text, choice["text"])
        self.assertEqual(output.num_tokens, len(choice["token_ids"]))
        finish = output.finish_info
        self.assertEqual(finish.num_output_tokens, len(choice["token_ids"]))
        reasons = {"stop": Finish.STOP, "length": Finish.LENGTH}
        self.assertEqual(finish.finish_reason, reasons[choice["finish_reason"]])
        kind = finish.WhichOneof("stop_reason")
        if choice["stop_reason"] is None:
            self.assertIn(kind, (None, "eos_token_id"))
        else:
            self.assertEqual(getattr(finish, kind), choice["stop_reason"])
        return answer

    def test_texts_and_tokens(self):
        for prompt in PROMPTS:
            answer = self.expect_equal(request(prompt))
            self.assertEqual(answer.prompt_info.num_prompt_tokens, len(self.http(prompt)[0]["prompt_token_ids"]))
        self.assertEqual(list(answer.prompt_info.token_ids), [])  # not asked for

    def test_token_ids_as_the_prompt(self):
        ids = self.http(PROMPTS[1])[0]["prompt_token_ids"]
        answer = self.expect_equal(request(ids, response={"prompt_token_ids": True}))
        self.assertEqual(list(answer.prompt_info.token_ids), ids)
        self.assertEqual(answer.outputs, self.server.inference.Generate(request(PROMPTS[1])).outputs)
        cut = self.both(request(ids, truncate_prompt_tokens=3, response={"prompt_token_ids": True}))
        self.assertEqual(list(cut.prompt_info.token_ids), ids[-3:])

    def test_only_what_was_asked_for(self):
        asked = request(PROMPTS[0], response={"output_text": False})
        asked.response.output_token_ids = False
        output = self.both(asked).outputs
        self.assertEqual((output.text, list(output.token_ids), list(output.logprobs)), ("", [], []))
        self.assertEqual(output.num_tokens, 24)
        default = self.server.inference.Generate(pb.GenerateRequest(text=PROMPTS[0]))
        self.assertTrue(default.outputs.text.startswith(self.http(PROMPTS[0])[0]["text"]))

    def test_the_default_length_is_the_context(self):
        output = self.server.inference.Generate(request("1", 0, stopping={"ignore_eos": True})).outputs
        info = self.server.control.GetServerInfo(grpc_stubs.control_pb.GetServerInfoRequest())
        self.assertEqual(output.finish_info.finish_reason, Finish.LENGTH)
        self.assertEqual(output.num_tokens, info.max_model_len - len(self.http("1")[0]["prompt_token_ids"]))

    def test_seeds_and_sampling(self):
        decoding = pb.DecodingParameters
        cases = [
            ({}, {"seed": 7}, None, {}),
            ({}, {"seed": -3}, None, {}),
            ({"top_k": 5}, {"seed": 0}, None, {"top_k": 5}),
            ({"top_p": 0.75, "min_p": 0.0625}, {"seed": 1}, None, {"top_p": 0.75, "min_p": 0.0625}),
            ({}, {"seed": 2}, decoding(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.5),
             {"presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.5}),
            ({}, {"seed": 3}, decoding(logit_bias={22: 3.5, 23: -100}), {"logit_bias": {"22": 3.5, "23": -100}}),
            ({}, {"seed": 4}, decoding(allowed_token_ids=[22, 23, 24, 226]),
             {"allowed_token_ids": [22, 23, 24, 226]}),
        ]
        texts = set()
        for sampling, seed, parameters, fields in cases:
            with self.subTest(fields=fields, seed=seed):
                asked = request(PROMPTS[1], temperature=1, sampling=pb.RandomSampling(**sampling, **seed),
                                decoding=parameters)
                texts.add(self.expect_equal(asked, temperature=1, **seed, **fields).outputs.text)
        self.assertGreater(len(texts), 3)

    def test_several_sequences(self):
        asked = request(PROMPTS[1], temperature=1, sampling=pb.RandomSampling(num_sequences=3, seed=5),
                        response={"prompt_logprobs": True})
        whole = Whole(self.server.inference.GenerateStream(asked))
        choices = self.http(PROMPTS[1], temperature=1, seed=5, n=3)
        self.assertEqual(sorted(whole.outputs), [0, 1, 2])
        for index, choice in enumerate(choices):
            self.assertEqual(list(whole.outputs[index].token_ids), choice["token_ids"])
            self.assertEqual(whole.outputs[index].text, choice["text"])
        self.assertEqual(len(whole.prompt.logprobs), whole.prompt.num_prompt_tokens)

    def test_logprobs(self):
        for count in (0, 3):
            asked = request(PROMPTS[1], response={
                "output_logprobs": True, "prompt_logprobs": True,
                "output_candidates": pb.CandidateTokens(top_n=count),
                "prompt_candidates": pb.CandidateTokens(top_n=count)})
            answer = self.expect_equal(asked)
            ids = self.http(PROMPTS[1])[0]["prompt_token_ids"]
            http = self.server.http("POST", "/generate", {"token_ids": ids, "sampling_params": {
                "max_tokens": 24, "temperature": 0, "logprobs": count, "prompt_logprobs": count}})["choices"][0]
            output, prompt = answer.outputs, answer.prompt_info
            for numbers in (output.logprobs, output.ranks, output.candidate_tokens):
                self.assertEqual(len(numbers), output.num_tokens)
            for i, position in enumerate(http["logprobs"]["content"]):
                self.assertEqual(output.logprobs[i], as_float(position["logprob"]))
                self.assertEqual(output.ranks[i], 1)  # greedy
                others = [(top["token_id"], as_float(top["logprob"]), rank)
                          for rank, top in enumerate(position["top_logprobs"], 1)
                          if top["token_id"] != output.token_ids[i]]
                self.assertEqual([(t.id, t.logprob, t.rank) for t in output.candidate_tokens[i].tokens], others)
            for numbers in (prompt.logprobs, prompt.ranks, prompt.candidate_tokens):
                self.assertEqual(len(numbers), len(ids))
            self.assertEqual((prompt.logprobs[0], prompt.ranks[0]), (0, 0))
            for i, position in list(enumerate(http["prompt_logprobs"]))[1:]:
                own = position.pop(str(ids[i]))
                self.assertEqual((prompt.logprobs[i], prompt.ranks[i]), (as_float(own["logprob"]), own["rank"]))
                self.assertEqual({str(t.id): (t.logprob, t.rank) for t in prompt.candidate_tokens[i].tokens},
                                 {id_: (as_float(t["logprob"]), t["rank"]) for id_, t in position.items()})

    def test_stops(self):
        text = self.http(PROMPTS[1], 60)[0]["text"]
        word = text.split()[3]
        self.expect_stop(request(PROMPTS[1], 60, stopping={"stop_strings": [word, "never"]}),
                         "stop_string", word, stop=[word, "never"])
        self.expect_stop(request(PROMPTS[1], 60, stopping={"stop_strings": [word], "include_stop_strings": True}),
                         "stop_string", word, stop=[word], include_stop_str_in_output=True)
        token = self.http(PROMPTS[1], 60)[0]["token_ids"][5]
        self.expect_stop(request(PROMPTS[1], 60, stopping={"stop_token_ids": [token]}),
                         "stop_token_id", token, stop_token_ids=[token])
        self.expect_equal(request(PROMPTS[1], 60, stopping={"stop_token_ids": [token], "min_new_tokens": 20}),
                          stop_token_ids=[token], min_tokens=20)
        end = self.expect_equal(request(PROMPTS[3], 400))
        self.assertEqual(end.outputs.finish_info.WhichOneof("stop_reason"), "eos_token_id")
        self.assertEqual(end.outputs.finish_info.eos_token_id, end.outputs.token_ids[-1])
        self.expect_equal(request(PROMPTS[3], 400, stopping={"ignore_eos": True}), ignore_eos=True)

    def expect_stop(self, asked, kind, reason, **fields):
        finish = self.expect_equal(asked, **fields).outputs.finish_info
        self.assertEqual(finish.WhichOneof("stop_reason"), kind)
        self.assertEqual(getattr(finish, kind), reason)

    def test_structured_output(self):
        schema = '{"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "boolean"}}, ' \
                 '"required": ["z", "a"], "additionalProperties": false}'
        cases = [
            ({"regex": "[0-9]{3}-[a-f]{2}"}, {"regex": "[0-9]{3}-[a-f]{2}"}),
            ({"choice": pb.DecodingParameters.StringChoices(choices=["yes", "no"])}, {"choice": ["yes", "no"]}),
            ({"json": schema}, {"json": schema}),
            ({"json_object": True}, {"json_object": True}),
            ({"grammar": 'root ::= "a" [0-9]+ "z"'}, {"grammar": 'root ::= "a" [0-9]+ "z"'}),
        ]
        for given, http in cases:
            with self.subTest(given=http):
                self.expect_equal(request("Say: ", 40, decoding=pb.DecodingParameters(**given)),
                                  structured_outputs=http)

    def test_cache_fields_change_no_token(self):
        plain = self.server.inference.Generate(request(PROMPTS[1])).outputs
        for kv in (pb.KVCacheParameters(cache_salt="tenant"), pb.KVCacheParameters(bypass_prefix_cache=True)):
            self.assertEqual(self.both(request(PROMPTS[1], kv=kv, priority=3, session_id="s")).outputs, plain)
        long = "Tom has 12 apples and buys 30 more. " * 40
        hits = []
        for kv in (None, None, pb.KVCacheParameters(bypass_prefix_cache=True)):
            before = self.prefix_hits()
            self.server.inference.Generate(request(long, 2, kv=kv))
            hits.append(self.prefix_hits() - before)
        self.assertEqual((hits[0] == 0, hits[1] > 0, hits[2]), (True, True, 0), hits)

    def prefix_hits(self):
        line = next(line for line in self.server.metrics().splitlines()
                    if line.startswith("vllm:prefix_cache_hits_total"))
        return float(line.split()[-1])

    def test_many_streams_at_a_time(self):
        def run(number):
            prompt = f"{number} + {number} ="
            asked = request(prompt, 32, temperature=1, sampling=pb.RandomSampling(seed=number))
            return list(Whole(self.server.inference.GenerateStream(asked)).outputs[0].token_ids)

        alone = [run(number) for number in range(48)]
        with concurrent.futures.ThreadPoolExecutor(48) as threads:
            self.assertEqual(list(threads.map(run, range(48))), alone)


def main():
    global PROGRAM
    parser = argparse.ArgumentParser()
    parser.add_argument("--outrider", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.outrider
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
