// Systems without a futex: look again after a short while.
#include <chrono>
#include <thread>

#include "kvstore/board.h"

namespace mixflow::kvstore {

void sleep_on(std::atomic<uint32_t>& word, uint32_t seen, int64_t ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  while (word.load() == seen && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void ring(std::atomic<uint32_t>& word, bool) { word.fetch_add(1, std::memory_order_seq_cst); }

}  // namespace mixflow::kvstore
