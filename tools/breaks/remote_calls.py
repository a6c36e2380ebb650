"""gRPC: requests and answers as messages, calls from their first byte to their end."""
from mistake import Break

TOPICS = {
    "grpc-messages": "what requests and answers say",
    "grpc-codes": "errors as gRPC spells them",
    "grpc-calls": "calls that are refused, left, aborted or cut short by the server's end",
}


def grpc_break(topic, mistake, source, old, new, tests):
    return Break(topic, mistake, source, old, new, "grpc_test", tests)


BREAKS = (
    grpc_break("grpc-messages", "an absent temperature is the model's", "grpc/parse_grpc_request.cc",
               'fields->SetNumber("temperature", request.has_temperature() ? request.temperature() : 0);',
               'if (request.has_temperature()) fields->SetNumber("temperature", request.temperature());',
               "ParseGrpcRequestTest.WhatIsLeftOutHasVllmsDefaults"),
    grpc_break("grpc-messages", "fields that nobody knows are dropped", "grpc/parse_grpc_request.cc",
               'if (!limits.ignore_unknown_fields) Refuse("", what + "; leave it out");', "",
               "ParseGrpcRequestTest.RefusesUnknownFieldsAtAnyDepth"),
    grpc_break("grpc-messages", "fields within messages are not looked at", "grpc/parse_grpc_request.cc",
               "field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_repeated()", "true",
               "ParseGrpcRequestTest.RefusesUnknownFieldsAtAnyDepth"),
    grpc_break("grpc-messages", "requests that bypass the cache share a part of it", "grpc/parse_grpc_request.cc",
               '"bypass " + RandomId()', '"bypass"',
               "ParseGrpcRequestTest.BypassingThePrefixCacheIsASaltThatNobodyHas"),
    grpc_break("grpc-messages", "a whole answer drops all sequences but one", "grpc/parse_grpc_request.cc",
               "if (!stream && message.sampling().num_sequences() > 1) {", "if (false) {",
               "ParseGrpcRequestTest.OnlyStreamsHaveSeveralSequences"),
    grpc_break("grpc-messages", "each message tells of the prompt", "grpc/grpc_writer.cc",
               "if (!std::exchange(prompt_told_, true)) FillPrompt", "if (true) FillPrompt",
               "GrpcWriterTest.TheFirstMessageOfAStreamTellsOfThePrompt"),
    grpc_break("grpc-messages", "other choices do not wait for the prompt's log-probabilities", "grpc/grpc_writer.h",
               "return choice > 0 && !prompt_told_;", "return choice > 1 && !prompt_told_;",
               "GrpcWriterTest.ThePromptsLogprobsComeWithTheFirstChoice"),
    grpc_break("grpc-messages", "a token is a candidate beside itself", "grpc/grpc_writer.cc",
               "if (token.token_id == position.chosen.token_id) continue;", "",
               "GrpcWriterTest.ThePromptsLogprobsComeWithTheFirstChoice"),
    grpc_break("grpc-messages", "the end counts the tokens of its message", "grpc/grpc_writer.cc",
               "set_num_output_tokens(num_tokens_[choice])", "set_num_output_tokens(count)",
               "GrpcWriterTest.TheFirstMessageOfAStreamTellsOfThePrompt"),
    grpc_break("grpc-messages", "every last token is an end of text", "grpc/grpc_writer.cc",
               "encoder_.IsSpecial(delta.token_ids.back())", "delta.token_ids.back() >= 0",
               "GrpcWriterTest.StopReasons"),
    grpc_break("grpc-codes", "a full queue is said to be a server that stops", "grpc/grpc_status.cc",
               "return is_full ? StatusCode::RESOURCE_EXHAUSTED : StatusCode::UNAVAILABLE;",
               "return StatusCode::UNAVAILABLE;", "GrpcCallTest.AFullEngineRefuses"),
    grpc_break("grpc-codes", "fields have the names of the HTTP API", "grpc/grpc_status.cc",
               "FieldName(error.param));", "error.param);", "GrpcStatusTest.FieldsHaveTheNamesOfTheDefinitions"),
    grpc_break("grpc-codes", "a fault in the middle ends a stream as if it were whole", "grpc/grpc_call.cc",
               "end_status_ = StatusOfErrorFrame(frame.bytes);", "end_status_ = Status::OK;",
               "GrpcCallTest.AFaultInTheMiddleIsTheStreamsStatus"),
    grpc_break("grpc-calls", "nobody looks whether the client of a whole answer is there", "grpc/grpc_call.h",
               "void OnCancel() override { Left(); }\n  void OnDone() override { Over(); }\n  bool Send",
               "void OnDone() override { Over(); }\n  bool Send", "GrpcCallTest.WhoeverLeavesHasNoRequestLeft"),
    grpc_break("grpc-calls", "no key is needed to ask about the server", "grpc/control_service.cc",
               "if (!keys.IsAuthorized(head)) {", "if (false) {", "GrpcCallTest.KeysAreThoseOfHttp"),
    grpc_break("grpc-calls", "no key is needed to generate", "grpc/grpc_call.cc",
               "if (!parts.keys.IsAuthorized(request_)) {", "if (false) {", "GrpcCallTest.KeysAreThoseOfHttp"),
    grpc_break("grpc-calls", "a server that stops takes new requests", "grpc/grpc_call.cc",
               "if (calls_.draining) return ShuttingDown();", "", "GrpcCallTest.StopsAsHttpDoes"),
    grpc_break("grpc-calls", "HTTP's end does not wait for gRPC's requests", "http/http_server.cc",
               "return to_finish_.size() + state_.application->CountOthers();", "return to_finish_.size();",
               "GrpcCallTest.StopsAsHttpDoes"),
    grpc_break("grpc-calls", "requests are not cancelled when time is up", "grpc/grpc_server.cc",
               "call->CancelByServer();", "(void)call;", "GrpcCallTest.WhatTakesTooLongIsCancelled"),
)
