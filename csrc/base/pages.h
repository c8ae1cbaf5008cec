// Pages of memory. A hint only: where the system has no such call, nothing happens.
#pragma once

#include <cstddef>

namespace mixflow {

constexpr size_t kHugePage = size_t{2} << 20;

// Asks for huge pages for memory that begins at a multiple of kHugePage and has whole ones only.
void ask_for_huge_pages(void* data, size_t bytes);

}  // namespace mixflow
