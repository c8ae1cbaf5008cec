#include "engine/record.h"

#include <algorithm>
#include <functional>

namespace mixflow::engine {

Record::Record(ThreadedEngine& engine, std::unique_ptr<Task> pushed)
    : engine(engine),
      task(std::move(pushed)),
      reads(std::move(task->reads)),
      writes(std::move(task->writes)),
      held_bytes(task->held_bytes),
      run_on_error(task->run_on_error),
      ends_with_children(task->ends_with_children),
      priority(task->priority),
      wanted(std::max(1, task->threads)),
      site(task->site),
      lane(task->lane) {
  merge();
}

Access* Record::find(const Tag* tag) {
  if (count <= kSmall) {
    Access* found = std::find_if(begin(), end(), [&](const Access& a) { return a.tag == tag; });
    return found == end() ? nullptr : found;
  }
  Access* found =
      std::lower_bound(begin(), end(), tag, [](const Access& access, const Tag* sought) {
        return std::less<const Tag*>()(access.tag, sought);
      });
  return found != end() && found->tag == tag ? found : nullptr;
}

void Record::merge() {
  if (reads.size() + writes.size() <= kSmall) {
    merge_small();
  } else {
    merge_many();
  }
  for (Access& access : *this) access.record = this;
}

void Record::merge_small() {
  accesses = small_.data();
  const auto add = [this](const TagRef& tag) -> Access& {
    if (Access* known = find(tag.get())) return *known;
    small_[count].tag = static_cast<TagState*>(tag.get());
    return small_[count++];
  };
  for (const TagRef& tag : writes) add(tag).write = true;
  for (const TagRef& tag : reads) add(tag).reads = true;
}

void Record::merge_many() {
  many_.resize(reads.size() + writes.size());
  size_t used = 0;
  for (const TagRef& tag : writes) {
    many_[used].tag = static_cast<TagState*>(tag.get());
    many_[used++].write = true;
  }
  for (const TagRef& tag : reads) {
    many_[used].tag = static_cast<TagState*>(tag.get());
    many_[used++].reads = true;
  }
  std::sort(many_.begin(), many_.end(),
            [](const Access& a, const Access& b) { return std::less<const Tag*>()(a.tag, b.tag); });
  size_t last = 0;
  for (size_t i = 1; i < many_.size(); ++i) {
    if (many_[i].tag != many_[last].tag) {
      many_[++last] = many_[i];
      continue;
    }
    many_[last].write |= many_[i].write;
    many_[last].reads |= many_[i].reads;
  }
  many_.resize(last + 1);
  accesses = many_.data();
  count = many_.size();
}

}  // namespace mixflow::engine
