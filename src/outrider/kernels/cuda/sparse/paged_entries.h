// Where the entries of one layer's cache lie, for kernels that read them by number.
#pragma once

#include <cstdint>

namespace outrider::cuda {

/// Entry j of request r is in page block_table[r * block_table_stride + j / page_size], j %
/// page_size entries behind its beginning; a page's entries follow each other. Pages lie
/// page_stride bytes apart, so that layers of different widths can share the pages of a pool.
struct PagedEntries {
  const void* data = nullptr;  // of page 0, 16-byte aligned
  int num_pages = 0;
  int page_size = 0;        // entries; a power of two from 8 to 1024
  int64_t page_stride = 0;  // bytes, a multiple of 16
  // int32 [requests, block_table_stride], on the device; entries past a request's length are unused
  const int* block_table = nullptr;
  int block_table_stride = 0;
  // Block tables of windows are rings: of block b they have column b & block_table_mask alone.
  int block_table_mask = -1;
};

}  // namespace outrider::cuda
