// Sleeping on a word that processes share: the kernel's futex.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "kvstore/board.h"

namespace mixflow::kvstore {

void sleep_on(std::atomic<uint32_t>& word, uint32_t seen, int64_t ms) {
  if (ms <= 0) return;
  timespec limit{};
  limit.tv_sec = ms / 1000;
  limit.tv_nsec = ms % 1000 * 1000000;
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void ring(std::atomic<uint32_t>& word, bool wake) {
  word.fetch_add(1, std::memory_order_seq_cst);
  if (wake) syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace mixflow::kvstore
