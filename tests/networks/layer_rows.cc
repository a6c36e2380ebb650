// Writes what a network computes for one request, for tools/check_layer.py to compare bit by bit.
//
//   layer_rows MODEL TOKENS ROWS DTYPE FORM ROLE
//
// TOKENS is a file of int32 token ids. DTYPE is float32 or bfloat16, FORM heads or latent, ROLE
// prompt (all tokens at once) or decode (token after token). ROWS becomes a file of float32: for
// every layer its output [tokens, hidden], then the normalised rows [tokens, hidden], then the
// logits [tokens, vocabulary]. OUTRIDER_ISA chooses the instruction set, as everywhere; its name is
// printed.
#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "tests/networks/loaded_model.h"

namespace outrider {
namespace {

constexpr int32_t kBlockSize = 16;

std::vector<int32_t> ReadTokens(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw NotFound("cannot read {}", path);
  std::vector<int32_t> tokens(static_cast<size_t>(file.tellg()) / sizeof(int32_t));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(tokens.data()),
            static_cast<std::streamsize>(tokens.size() * sizeof(int32_t)));
  if (!file || tokens.empty()) throw InvalidArgument("{} has no int32 token ids", path);
  return tokens;
}

/// The one of `names` that `text` is.
size_t Choice(const std::string& text, const std::array<std::string, 2>& names) {
  const auto found = std::ranges::find(names, text);
  if (found == names.end()) {
    throw InvalidArgument("'{}' is neither {} nor {}", text, names[0], names[1]);
  }
  return static_cast<size_t>(found - names.begin());
}

struct Arguments {
  std::string model;
  std::vector<int32_t> tokens;
  std::string rows;
  DType dtype;
  KvCacheForm form;
  Phase role;
};

void WriteRows(const Arguments& args) {
  LoadedModel loaded(args.model, args.dtype, SelectIsa(), 2, args.form);
  Network& network = *loaded.model;
  const auto count = static_cast<int32_t>(args.tokens.size());
  const int32_t num_blocks = (count + kBlockSize - 1) / kBlockSize;
  KvCache cache = loaded.MakeCache(num_blocks, kBlockSize, args.dtype);
  const std::vector<int32_t> blocks = FirstBlocks(num_blocks);
  const int64_t layers = network.config().num_hidden_layers();
  const int64_t hidden = network.hidden_size();
  std::vector<float> values(
      static_cast<size_t>(count * ((layers + 1) * hidden + network.vocab_size())));
  std::vector<MatrixView<float>> outputs;
  for (int64_t i = 0; i <= layers; ++i) {
    outputs.emplace_back(values.data() + i * count * hidden, count, hidden);
  }

  BatchLayout layout{kBlockSize};
  const int32_t step = args.role == Phase::kDecode ? 1 : count;
  for (int32_t first = 0; first < count; first += step) {
    layout.Assign(std::vector{RequestWork{
        .slot = 0,
        .phase = args.role,
        .context_length = first,
        .tokens =
            std::span(args.tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(step)),
        .draft_tokens = {},
        .samples = false,
        .block_tables = {&blocks, 1}}});
    std::vector<LayerTap> taps;
    for (int32_t i = 0; i < layers; ++i) {
      taps.push_back({i, outputs[static_cast<size_t>(i)].Rows(first, step)});
    }
    network.Forward(layout, cache, outputs.back().Rows(first, step), taps);
  }
  std::vector<int32_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  network.Logits(Network::kTarget, outputs.back(), all,
                 {values.data() + (layers + 1) * count * hidden, count, network.vocab_size()});

  std::ofstream file(args.rows, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
  file.close();
  if (!file) throw Error(ErrorCode::kUnavailable, fmt::format("cannot write {}", args.rows));
  fmt::print("{}\n", IsaName(SelectIsa()));
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  using namespace outrider;
  try {
    if (argc != 7) throw InvalidArgument("layer_rows MODEL TOKENS ROWS DTYPE FORM ROLE");
    WriteRows({.model = argv[1],
               .tokens = ReadTokens(argv[2]),
               .rows = argv[3],
               .dtype = Choice(argv[4], {"float32", "bfloat16"}) == 0 ? DType::kF32 : DType::kBF16,
               .form = Choice(argv[5], {"heads", "latent"}) == 0 ? KvCacheForm::kHeads
                                                                 : KvCacheForm::kLatent,
               .role = Choice(argv[6], {"prompt", "decode"}) == 0 ? Phase::kPromptChunk
                                                                  : Phase::kDecode});
  } catch (const Error& error) {
    fmt::print(stderr, "layer_rows: error: {}\n", error.what());
    return 2;
  }
  return 0;
}
