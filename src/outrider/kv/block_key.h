// The name of what a KV block holds, for prefix caching: a cryptographic hash of all tokens that
// its entries depend on.
#pragma once

#include <openssl/evp.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace outrider {

/// A SHA-256 digest.
using BlockKey = std::array<uint8_t, 32>;

/// The keys of one request's blocks, in order; `root` stands before the first.
struct BlockKeys {
  BlockKey root{};
  std::vector<BlockKey> blocks;
};

/// Makes keys: key[i] = SHA-256(key[i-1] | tokens [i * block_size, (i+1) * block_size + ahead)),
/// with key[-1] = SHA-256(salt). `ahead` counts the tokens after a position that its cached entries
/// depend on (DrafterReach::tokens_ahead): a block is found only by a request that continues as its
/// writer did, so drafter entries at the block's end are right for the finder too.
class BlockKeyHasher {
 public:
  BlockKeyHasher(int32_t block_size, int32_t tokens_ahead);

  /// Starts a request's chain. Requests with different salts share nothing.
  BlockKeys Start(std::string_view salt);

  /// Adds the keys of all blocks that `tokens`, the request's known tokens, determine.
  void Extend(std::span<const int32_t> tokens, BlockKeys& keys);

 private:
  struct FreeContext {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };

  BlockKey Hash(std::span<const uint8_t> first, std::span<const uint8_t> second);

  int32_t block_size_;
  int32_t tokens_ahead_;
  std::unique_ptr<EVP_MD_CTX, FreeContext> context_;  // reused: a digest allocates nothing
};

}  // namespace outrider
