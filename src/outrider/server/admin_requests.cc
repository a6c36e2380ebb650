#include "outrider/server/admin_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "outrider/openai/api_error.h"
#include "outrider/openai/field_reader.h"
#include "outrider/openai/request_json.h"

namespace outrider {
namespace {

using openai::FieldReader;
namespace fs = std::filesystem;

[[noreturn]] void Refuse(const std::string& name, const std::string& what) {
  throw openai::RequestError(ErrorCode::kInvalidArgument, name, fmt::format("{}: {}", name, what));
}

bool BoolOf(const std::string& name, std::string_view value) {
  if (value == "true" || value == "1") return true;
  if (value == "false" || value == "0") return false;
  Refuse(name, fmt::format("must be true or false, not \"{}\"", value.substr(0, 48)));
}

PauseMode ModeOf(std::string_view value) {
  if (value == "abort") return PauseMode::kAbort;
  if (value == "wait") return PauseMode::kWait;
  if (value == "keep") return PauseMode::kKeep;
  Refuse("mode", fmt::format("must be abort, wait or keep, not \"{}\"", value.substr(0, 48)));
}

// Calls take(name, value) for each part of the query; false: there is no such name.
void ReadQuery(std::string_view query, const char* names,
               const std::function<bool(const std::string&, std::string_view)>& take) {
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    const size_t equals = std::min(part.find('='), part.size());
    const std::string name(part.substr(0, equals));
    const std::string_view value = part.substr(std::min(part.size(), equals + 1));
    if (part.empty() || take(name, value)) continue;
    Refuse(name.substr(0, 48), fmt::format("unknown; use {}", names));
  }
}

void AddTag(std::string_view tag, std::optional<EngineMemory>* memory) {
  if (!*memory) memory->emplace();
  if (tag == "weights") {
    (*memory)->weights = true;
  } else if (tag == "kv_cache") {
    (*memory)->kv_cache = true;
  } else if (tag != "cuda_graph") {  // which keeps no memory of its own here
    Refuse("tags", fmt::format("must be weights or kv_cache, not \"{}\"", tag.substr(0, 48)));
  }
}

EngineMemory OrAll(const std::optional<EngineMemory>& memory) {
  return memory.value_or(EngineMemory{.weights = true, .kv_cache = true});
}

// With all links followed; "": below none of them.
std::string AllowedFolder(const std::string& folder, const std::vector<std::string>& allowed_dirs) {
  std::error_code error;
  const fs::path path = fs::weakly_canonical(folder, error);
  if (error) return "";
  for (const std::string& dir : allowed_dirs) {
    const fs::path base = fs::weakly_canonical(dir, error);
    if (error) continue;
    const fs::path inside = path.lexically_relative(base);
    if (!inside.empty() && *inside.begin() != "..") return path.string();
  }
  return "";
}

}  // namespace

PauseRequest ParsePauseQuery(std::string_view query) {
  PauseRequest request;
  ReadQuery(query, "mode, clear_cache or wait_for_inflight_requests",
            [&](const std::string& name, std::string_view value) {
              if (name == "mode") {
                request.mode = ModeOf(value);
              } else if (name == "clear_cache") {
                request.forget_prefixes = BoolOf(name, value);
              } else if (name == "wait_for_inflight_requests") {
                if (BoolOf(name, value)) request.mode = PauseMode::kWait;
              } else {
                return false;
              }
              return true;
            });
  return request;
}

PauseRequest ParsePauseBody(const std::string& body) {
  PauseRequest request{.mode = PauseMode::kAbort, .forget_prefixes = false};
  if (body.empty()) return request;
  const openai::RequestJson parsed = openai::ParseRequestJson(body);
  FieldReader fields(*parsed, "");
  const std::string mode = fields.String("mode").value_or("abort");
  if (mode != "abort" && mode != "in_place" && mode != "retract") {
    fields.Refuse("mode", R"(must be "abort", "in_place" or "retract")");
  }
  request.mode = mode == "abort" ? PauseMode::kAbort : PauseMode::kKeep;
  fields.RefuseUnknown();
  return request;
}

SleepRequest ParseSleepQuery(std::string_view query) {
  SleepRequest request;
  std::optional<EngineMemory> memory;
  ReadQuery(query, "level, mode or tags", [&](const std::string& name, std::string_view value) {
    if (name == "level") {
      if (value != "1" && value != "2") {
        Refuse("level", "must be 1 or 2, which do the same here; to pause alone use /pause");
      }
    } else if (name == "mode") {
      request.mode = ModeOf(value);
    } else if (name == "tags") {
      AddTag(value, &memory);
    } else {
      return false;
    }
    return true;
  });
  request.memory = OrAll(memory);
  return request;
}

EngineMemory ParseWakeUpQuery(std::string_view query) {
  std::optional<EngineMemory> memory;
  ReadQuery(query, "tags", [&](const std::string& name, std::string_view value) {
    if (name != "tags") return false;
    AddTag(value, &memory);
    return true;
  });
  return OrAll(memory);
}

EngineMemory ParseMemoryBody(const std::string& body) {
  std::optional<EngineMemory> memory;
  if (!body.empty()) {
    const openai::RequestJson parsed = openai::ParseRequestJson(body);
    FieldReader fields(*parsed, "");
    if (const nlohmann::json* tags = fields.Array("tags")) {
      for (const nlohmann::json& tag : *tags) {
        if (!tag.is_string()) fields.Refuse("tags", "must be a list of strings");
        AddTag(tag.get_ref<const std::string&>(), &memory);
      }
    }
    fields.RefuseUnknown();
  }
  return OrAll(memory);
}

WeightUpdate ParseWeightUpdate(const std::string& body,
                               const std::vector<std::string>& allowed_dirs) {
  const openai::RequestJson parsed = openai::ParseRequestJson(body);
  FieldReader outer(*parsed, "");
  const nlohmann::json* const info = outer.Object("update_info");
  if (info != nullptr) outer.RefuseUnknown();
  FieldReader fields(info == nullptr ? *parsed : *info, info == nullptr ? "" : "update_info");
  const auto folder_of = [&](const char* name) -> std::string {
    const std::optional<std::string> folder = fields.String(name);
    if (!folder) return "";
    std::string allowed = AllowedFolder(*folder, allowed_dirs);
    if (allowed.empty()) {
      fields.Refuse(name, "weights are read from folders below --allowed-weight-dirs only");
    }
    return allowed;
  };
  WeightUpdate update;
  update.folders.model = folder_of("model_path");
  if (std::string path = folder_of("weights_path"); !path.empty()) {
    if (!update.folders.model.empty()) {
      fields.Refuse("weights_path", "is another name of model_path; give one of them");
    }
    update.folders.model = std::move(path);
  }
  if (update.folders.model.empty()) fields.Refuse("model_path", "is missing: a folder of weights");
  update.folders.drafter = folder_of("draft_model_path");
  update.version = fields.String("weight_version").value_or("");
  if (update.version.size() > 256) fields.Refuse("weight_version", "has over 256 bytes");
  update.aborts_requests = fields.Bool("abort_all_requests").value_or(false);
  fields.Unsupported("load_format", {"auto", "safetensors"});
  // Whatever they say holds here: no request finds what other weights computed, the call answers
  // when it is done, and a pause stays one.
  for (const char* name :
       {"flush_cache", "torch_empty_cache", "keep_pause", "token_step", "recapture_cuda_graph"}) {
    fields.Find(name);
  }
  fields.Unsupported("is_async", {false});
  fields.RefuseUnknown();
  return update;
}

}  // namespace outrider
