#include <sys/mman.h>

#include "base/pages.h"

namespace mixflow {

// Fails where the kernel has no huge pages: plain ones will do.
void ask_for_huge_pages(void* data, size_t bytes) { madvise(data, bytes, MADV_HUGEPAGE); }

}  // namespace mixflow
