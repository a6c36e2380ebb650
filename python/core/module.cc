// outrider._core: the package's module over the C++ library. The package's Python files are what
// people use; this has their engine, events, errors and logs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/base/version.h"
#include "outrider/cli/program.h"
#include "python/core/event_queue.h"
#include "python/core/log_queue.h"
#include "python/core/python_engine.h"

namespace nb = nanobind;

namespace outrider::python {
namespace {

using Released = nb::call_guard<nb::gil_scoped_release>;
template <typename Number>
using Array = nb::ndarray<const Number, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Alternatives = std::vector<std::pair<int32_t, float>>;
// Token, log-probability, rank, the most likely tokens.
using Position = std::tuple<int32_t, float, int32_t, Alternatives>;

// What Error becomes, by code. Of the module, which is never unloaded.
struct Exceptions {
  PyObject* base = nullptr;
  PyObject* invalid_argument = nullptr;
  PyObject* not_found = nullptr;
  PyObject* overloaded = nullptr;
  PyObject* unavailable = nullptr;

  PyObject* Of(ErrorCode code) const {
    switch (code) {
      case ErrorCode::kInvalidArgument:
      case ErrorCode::kTooLarge:
        return invalid_argument;
      case ErrorCode::kNotFound:
        return not_found;
      case ErrorCode::kOverloaded:
        return overloaded;
      case ErrorCode::kUnavailable:
        return unavailable;
    }
    return base;
  }
};
Exceptions exceptions;

PyObject* NewException(nb::module_& module, const char* name, const char* doc,
                       const nb::tuple& bases) {
  const std::string whole = std::string("outrider._core.") + name;
  PyObject* const made = PyErr_NewExceptionWithDoc(whole.c_str(), doc, bases.ptr(), nullptr);
  if (made == nullptr) nb::raise_python_error();
  module.attr(name) = nb::handle(made);
  return made;
}

void AddExceptions(nb::module_& module) {
  exceptions.base = NewException(module, "OutriderError", "What Outrider could not do, and why.",
                                 nb::make_tuple(nb::handle(PyExc_RuntimeError)));
  const nb::handle base(exceptions.base);
  exceptions.invalid_argument = NewException(module, "InvalidArgumentError",
                                             "An option, a file or a request that cannot work.",
                                             nb::make_tuple(base, nb::handle(PyExc_ValueError)));
  exceptions.not_found =
      NewException(module, "NotFoundError", "A model or a file that is not there.",
                   nb::make_tuple(base, nb::handle(PyExc_FileNotFoundError)));
  exceptions.overloaded = NewException(module, "OverloadedError",
                                       "A queue is full; try again later.", nb::make_tuple(base));
  exceptions.unavailable =
      NewException(module, "UnavailableError",
                   "An engine that has stopped, failed, or is not here.", nb::make_tuple(base));
  nb::register_exception_translator([](const std::exception_ptr& thrown, void* /*payload*/) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      PyErr_SetString(exceptions.Of(error.code()), error.what());
    }
  });
}

template <typename Number>
std::vector<int32_t> Ids(const Array<Number>& array, const char* what) {
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    const Number id = array.data()[i];
    if (!std::in_range<int32_t>(id)) {
      throw InvalidArgument("{}: {} is no token id", what, id);
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

// A text, token ids as any sequence of ints, or as an array (numpy's, or what has __dlpack__).
Prompt PromptOf(const nb::object& value, const char* what) {
  if (value.is_none()) return {};
  if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
  if (nb::hasattr(value, "__dlpack__") || nb::hasattr(value, "__array_interface__")) {
    Array<int32_t> narrow;
    if (nb::try_cast(value, narrow, false)) return Ids(narrow, what);
    Array<int64_t> wide;
    if (nb::try_cast(value, wide, false)) return Ids(wide, what);
  } else {
    std::vector<int32_t> ids;
    if (nb::try_cast(value, ids)) return ids;
  }
  throw nb::type_error((std::string(what) +
                        " must be a str, a sequence of token ids, or a contiguous one-dimensional "
                        "array of int32 or int64 in the host's memory")
                           .c_str());
}

template <typename Number>
nb::ndarray<nb::array_api, Number, nb::ndim<1>> NewArray(std::vector<Number> values) {
  auto* const kept = new std::vector<Number>(std::move(values));
  const nb::capsule owner(kept,
                          [](void* p) noexcept { delete static_cast<std::vector<Number>*>(p); });
  return {kept->data(), {kept->size()}, owner};
}

/// int16 [tokens, layers, k], which keeps the engine's memory.
nb::ndarray<nb::array_api, const int16_t, nb::ndim<3>> ExpertArray(
    std::shared_ptr<const RoutedExperts> experts) {
  auto* const kept = new std::shared_ptr(std::move(experts));
  const nb::capsule owner(
      kept, [](void* p) noexcept { delete static_cast<std::shared_ptr<const RoutedExperts>*>(p); });
  const RoutedExperts& told = **kept;
  return {told.ids.data(),
          {static_cast<size_t>(told.tokens), static_cast<size_t>(told.shape.layers),
           static_cast<size_t>(told.shape.top_k)},
          owner};
}

std::vector<Position> Positions(const std::vector<PositionLogprobs>& logprobs) {
  std::vector<Position> positions;
  positions.reserve(logprobs.size());
  for (const PositionLogprobs& position : logprobs) {
    Alternatives top;
    for (const TokenLogprob& token : position.top) top.emplace_back(token.token_id, token.logprob);
    positions.emplace_back(position.chosen.token_id, position.chosen.logprob, position.rank,
                           std::move(top));
  }
  return positions;
}

nb::dict SpeculationDict(const SpeculationCounts& counts) {
  nb::dict result;
  result["num_drafts"] = counts.num_drafts;
  result["num_draft_tokens"] = counts.num_draft_tokens;
  result["num_accepted_tokens"] = counts.num_accepted_tokens;
  result["accepted_per_position"] = counts.accepted_per_position;
  result["mean_acceptance_length"] = counts.MeanAcceptanceLength();
  return result;
}

nb::dict StatsDict(const RequestStats& stats) {
  nb::dict result;
  result["prompt_tokens"] = stats.prompt_tokens;
  result["completion_tokens"] = stats.completion_tokens;
  result["cached_tokens"] = stats.cached_tokens;
  result["num_preemptions"] = stats.num_preemptions;
  result["queue_seconds"] = stats.queue_seconds;
  result["first_token_seconds"] = stats.first_token_seconds;
  result["total_seconds"] = stats.total_seconds;
  result["speculation"] = SpeculationDict(stats.speculation);
  return result;
}

nb::dict CountersDict(const EngineCounters& counters) {
  nb::dict result;
  result["num_requests_running"] = counters.num_requests_running;
  result["num_requests_waiting"] = counters.num_requests_waiting;
  result["kv_cache_usage"] = counters.kv_cache_usage;
  result["num_speculative_tokens"] = counters.num_speculative_tokens;
  result["kv_block_size"] = counters.kv_block_size;
  result["num_kv_blocks"] = counters.num_kv_blocks;
  result["num_steps"] = counters.num_steps;
  result["prompt_tokens"] = counters.prompt_tokens;
  result["generation_tokens"] = counters.generation_tokens;
  result["num_preemptions"] = counters.num_preemptions;
  result["prefix_cache_queries"] = counters.prefix_cache_queries;
  result["prefix_cache_hits"] = counters.prefix_cache_hits;
  result["finished_stop"] = counters.finished_stop;
  result["finished_length"] = counters.finished_length;
  result["finished_abort"] = counters.finished_abort;
  result["finished_error"] = counters.finished_error;
  result["plan_seconds"] = counters.plan_seconds;
  result["model_seconds"] = counters.model_seconds;
  result["sample_seconds"] = counters.sample_seconds;
  result["draft_seconds"] = counters.draft_seconds;
  result["speculation"] = SpeculationDict(counters.speculation);
  return result;
}

void AddEvents(nb::module_& module) {
  nb::class_<Event>(module, "Event", "What a choice of a request got: a step's tokens, or all.")
      .def_ro("request", &Event::request)
      .def_ro("choice", &Event::choice)
      .def_prop_ro("text", [](const Event& event) { return event.delta.text; })
      .def_prop_ro("token_ids", [](const Event& event) { return event.delta.token_ids; })
      .def_prop_ro("finish_reason",
                   [](const Event& event) -> std::optional<std::string> {
                     if (!event.delta.finish_reason) return std::nullopt;
                     return std::string(FinishReasonName(*event.delta.finish_reason));
                   })
      .def_prop_ro("stop_reason",
                   [](const Event& event) -> std::optional<std::variant<int32_t, std::string>> {
                     const auto& reason = event.delta.stop_reason;
                     if (const auto* id = std::get_if<int32_t>(&reason)) return *id;
                     if (const auto* text = std::get_if<std::string>(&reason)) return *text;
                     return std::nullopt;
                   })
      .def_prop_ro("logprobs", [](const Event& event) { return Positions(event.delta.logprobs); })
      .def_prop_ro("prompt_logprobs",
                   [](const Event& event) { return Positions(event.delta.prompt_logprobs); })
      .def_prop_ro("num_draft_tokens",
                   [](const Event& event) { return event.delta.num_draft_tokens; })
      .def_prop_ro("num_accepted_tokens",
                   [](const Event& event) { return event.delta.num_accepted_tokens; })
      .def_prop_ro(
          "routed_experts",
          [](const Event& event)
              -> std::optional<nb::ndarray<nb::array_api, const int16_t, nb::ndim<3>>> {
            if (event.delta.experts == nullptr) return std::nullopt;
            return ExpertArray(event.delta.experts);
          },
          nb::rv_policy::automatic)
      .def_prop_ro("stats", [](const Event& event) { return StatsDict(event.delta.stats); });
  nb::class_<EventQueue>(module, "EventQueue")
      .def(nb::init<>())
      .def("descriptor", &EventQueue::descriptor)
      .def(
          "take",
          [](EventQueue& events, double seconds) {
            return events.Take(std::chrono::duration<double>(seconds));
          },
          nb::arg("seconds"), Released());
}

void AddEngine(nb::module_& module) {
  nb::class_<StartedRequest>(module, "StartedRequest")
      .def_ro("prompts", &StartedRequest::prompts)
      .def_ro("n", &StartedRequest::n);
  nb::class_<PythonEngine>(module, "Engine")
      .def(nb::init<const OptionTexts&, const LoadProgress&>(), nb::arg("options"),
           nb::arg("progress"), Released())
      .def("stop", &PythonEngine::Stop, Released())
      .def(
          "submit",
          [](PythonEngine& engine, const std::shared_ptr<EventQueue>& events, int64_t request,
             const std::string& body, bool is_chat, const nb::object& prompt, bool whole) {
            Prompt given = PromptOf(prompt, "prompt");
            const nb::gil_scoped_release released;
            return engine.Submit(events, request, body, is_chat, std::move(given), whole);
          },
          nb::arg("events"), nb::arg("request"), nb::arg("body"), nb::arg("is_chat"),
          nb::arg("prompt").none(), nb::arg("whole"))
      .def(
          "score",
          [](PythonEngine& engine, const std::shared_ptr<EventQueue>& events, int64_t request,
             const std::string& body, const nb::object& prompt, const nb::object& answer) {
            Prompt given = PromptOf(prompt, "prompt");
            Prompt wanted = PromptOf(answer, "answer");
            const nb::gil_scoped_release released;
            return engine.Score(events, request, body, std::move(given), std::move(wanted));
          },
          nb::arg("events"), nb::arg("request"), nb::arg("body"), nb::arg("prompt"),
          nb::arg("answer"))
      .def("abort", &PythonEngine::Abort, nb::arg("events"), Released())
      .def("reset_prefix_cache", &PythonEngine::ResetPrefixCache, Released())
      .def("counters",
           [](PythonEngine& engine) {
             EngineCounters counters;
             {
               const nb::gil_scoped_release released;
               counters = engine.Counters();
             }
             return CountersDict(counters);
           })
      .def("encode", &PythonEngine::Encode, nb::arg("text"), nb::arg("add_special_tokens"),
           Released())
      .def(
          "decode",
          [](PythonEngine& engine, const nb::object& ids, bool skip_special_tokens) {
            const Prompt given = PromptOf(ids, "token_ids");
            const auto* tokens = std::get_if<std::vector<int32_t>>(&given);
            if (tokens == nullptr) throw nb::type_error("token_ids must be a sequence of ints");
            const nb::gil_scoped_release released;
            return engine.Decode(*tokens, skip_special_tokens);
          },
          nb::arg("token_ids"), nb::arg("skip_special_tokens"))
      .def(
          "render_chat",
          [](PythonEngine& engine, const std::string& body) {
            EncodedChat chat = engine.RenderChat(body);
            return std::pair(std::move(chat.text), std::move(chat.token_ids));
          },
          nb::arg("body"), Released())
      .def("token_bytes",
           [](PythonEngine& engine, int32_t id) {
             std::string bytes;
             {
               const nb::gil_scoped_release released;
               bytes = engine.TokenBytes(id);
             }
             return nb::bytes(bytes.data(), bytes.size());
           })
      .def("tokenizer_info", &PythonEngine::TokenizerInfo, Released())
      .def_prop_ro("max_model_len", &PythonEngine::max_model_len)
      .def_prop_ro("vocab_size", [](PythonEngine& engine) { return engine.limits().vocab_size; })
      .def_prop_ro("num_speculative_tokens",
                   [](PythonEngine& engine) { return engine.limits().num_speculative_tokens; })
      .def_prop_ro("kernels", [](PythonEngine& engine) { return engine.loaded().kernels; })
      .def_prop_ro("sampling_defaults", [](PythonEngine& engine) {
        const openai::SamplingDefaults& defaults = engine.limits().defaults;
        nb::dict result;
        if (defaults.temperature) result["temperature"] = *defaults.temperature;
        if (defaults.top_p) result["top_p"] = *defaults.top_p;
        if (defaults.min_p) result["min_p"] = *defaults.min_p;
        if (defaults.top_k) result["top_k"] = *defaults.top_k;
        if (defaults.repetition_penalty) {
          result["repetition_penalty"] = *defaults.repetition_penalty;
        }
        return result;
      });
  nb::class_<PythonServer>(module, "Server")
      .def(nb::init<const OptionTexts&, const LoadProgress&>(), nb::arg("options"),
           nb::arg("progress"), Released())
      .def("stop", &PythonServer::Stop, Released())
      .def_prop_ro("port", &PythonServer::port);
}

}  // namespace
}  // namespace outrider::python

NB_MODULE(_core, module) {
  using namespace outrider::python;
  module.doc() = "The engine of the package outrider. Use the package's own names.";
  module.attr("__version__") = outrider::kVersion;
  KeepLog();
  AddExceptions(module);
  AddEvents(module);
  AddEngine(module);
  module.def(
      "int32_array", [](std::vector<int32_t> values) { return NewArray(std::move(values)); },
      nb::arg("values"));
  module.def(
      "float32_array", [](std::vector<float> values) { return NewArray(std::move(values)); },
      nb::arg("values"));
  module.def("keyword_names", &KeywordNames, nb::arg("with_server"));
  module.def("suggest_keyword", &SuggestKeyword, nb::arg("name"), nb::arg("with_server"));
  module.def("wake_log_reader", &WakeLogReader);
  module.def("set_log_level", &SetLogLevel, nb::arg("level"));
  module.def(
      "take_log",
      [](double seconds) {
        std::vector<std::tuple<int, std::string, int, std::string>> lines;
        for (LogLine& line : TakeLog(std::chrono::duration<double>(seconds))) {
          lines.emplace_back(line.level, std::move(line.file), line.line, std::move(line.message));
        }
        return lines;
      },
      nb::arg("seconds"), Released());
  module.def("main", &outrider::cli::RunProgram, nb::arg("arguments"), Released(),
             "Runs the program `outrider`; returns its exit status.");
}
