#include "outrider/kv/block_key.h"

#include "outrider/base/error.h"

namespace outrider {

namespace {

template <typename T>
std::span<const uint8_t> Bytes(std::span<const T> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}

}  // namespace

BlockKeyHasher::BlockKeyHasher(int32_t block_size, int32_t tokens_ahead)
    : block_size_(block_size), tokens_ahead_(tokens_ahead), context_(EVP_MD_CTX_new()) {
  OUTRIDER_CHECK(block_size > 0 && tokens_ahead >= 0);
  OUTRIDER_CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

BlockKey BlockKeyHasher::Hash(std::span<const uint8_t> first, std::span<const uint8_t> second) {
  BlockKey key;
  // Without a digest named, the one from the constructor starts anew.
  const bool ok = EVP_DigestInit_ex(context_.get(), nullptr, nullptr) == 1 &&
                  EVP_DigestUpdate(context_.get(), first.data(), first.size()) == 1 &&
                  EVP_DigestUpdate(context_.get(), second.data(), second.size()) == 1 &&
                  EVP_DigestFinal_ex(context_.get(), key.data(), nullptr) == 1;
  OUTRIDER_CHECK(ok);
  return key;
}

BlockKeys BlockKeyHasher::Start(std::string_view salt) {
  return {.root = Hash({}, Bytes(std::span(salt))), .blocks = {}};
}

void BlockKeyHasher::Extend(std::span<const int32_t> tokens, BlockKeys& keys) {
  const auto block = static_cast<size_t>(block_size_);
  const size_t length = block + static_cast<size_t>(tokens_ahead_);
  for (size_t first = keys.blocks.size() * block; first + length <= tokens.size(); first += block) {
    const BlockKey& parent = keys.blocks.empty() ? keys.root : keys.blocks.back();
    const BlockKey key = Hash(parent, Bytes(tokens.subspan(first, length)));
    keys.blocks.push_back(key);
  }
}

}  // namespace outrider
