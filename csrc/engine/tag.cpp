#include "engine/tag.h"

#include <algorithm>

#include "engine/record.h"

namespace mixflow::engine {

bool TagState::append(Access& access) {
  access.previous = tail_;
  (tail_ ? tail_->next : head_) = &access;
  tail_ = &access;
  if (first_held_) return false;
  if (head_ == &access || (!access.write && !head_->write)) return true;
  first_held_ = &access;
  return false;
}

void TagState::release(Access& access, const FailureRef& failure, std::vector<Record*>& ready) {
  settle(access, failure);
  unlink(access);
  grant(ready);
  if (!waiters_.empty()) wake_waiters();
}

void TagState::settle(const Access& access, const FailureRef& failure) {
  if (!access.write) return;
  if (failure) {
    if (!access.reads || !failure_) failure_ = failure;
    return;
  }
  if (!access.reads) failure_ = nullptr;
  version_.fetch_add(1, std::memory_order_release);
}

void TagState::unlink(Access& access) {
  (access.previous ? access.previous->next : head_) = access.next;
  (access.next ? access.next->previous : tail_) = access.previous;
  access.previous = access.next = nullptr;
  access.released = true;
}

void TagState::grant(std::vector<Record*>& ready) {
  while (first_held_) {
    Access& access = *first_held_;
    const bool first = head_ == &access;
    if (!first && (access.write || head_->write)) return;
    first_held_ = access.next;
    if (--access.record->held == 0) ready.push_back(access.record);
    if (access.write) return;
  }
}

bool TagState::pending(bool any, uint64_t order) const {
  const Access* access = head_;
  // Behind granted reads, the first access that is held is a write.
  if (access && !any && !access->write) access = first_held_;
  return access && access->record->order <= order;
}

void TagState::wake_waiters() {
  const auto over = [this](TagWaiter* waiter) {
    if (pending(waiter->any, waiter->order)) return false;
    waiter->over = true;
    waiter->failure = failure_;
    waiter->changed.notify_one();
    return true;
  };
  waiters_.erase(std::remove_if(waiters_.begin(), waiters_.end(), over), waiters_.end());
}

void TagState::remove_waiter(TagWaiter& waiter) {
  waiters_.erase(std::remove(waiters_.begin(), waiters_.end(), &waiter), waiters_.end());
}

}  // namespace mixflow::engine
