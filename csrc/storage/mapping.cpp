// Named shared mappings and memory that somebody else owns.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "storage/storage.h"

namespace mixflow::storage {
namespace {

// A file descriptor with an owner; the mapping stays valid after it is closed.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  const int descriptor_;
};

std::string checked_name(const std::string& name) {
  const std::string path = !name.empty() && name[0] == '/' ? name : "/" + name;
  check(path.size() > 1 && path.size() < 255 && path.find('/', 1) == std::string::npos,
        "[shared_mapping] expected a name of 1 to 253 characters without '/', got '", name, "'");
  return path;
}

[[noreturn]] void fail(const std::string& name, size_t bytes, const char* what, int code) {
  throw Error(concat("[shared_mapping] could not ", what, " '", name, "' of ", bytes,
                     " bytes: ", std::strerror(code)));
}

class SharedBlock : public Block {
 public:
  SharedBlock(const std::string& name, size_t bytes, bool create)
      : path_(checked_name(name)), mapped_(std::max<size_t>(bytes, 1)) {
    bytes_ = bytes;
    const File file(shm_open(path_.c_str(), create ? O_CREAT | O_EXCL | O_RDWR : O_RDWR, 0600));
    if (file.get() < 0) fail(name, bytes, create ? "create" : "open", errno);
    if (create) creator_ = getpid();
    try {
      if (create) {
        reserve(file, name);
      } else {
        check_size(file, name);
      }
      map(file, name);
    } catch (...) {
      unlink_if_creator();
      throw;
    }
  }
  ~SharedBlock() override {
    munmap(data_, mapped_);
    unlink_if_creator();
  }

 private:
  // Takes the pages now: a full /dev/shm is an error here and not a SIGBUS at the first write.
  void reserve(const File& file, const std::string& name) {
    const int code = posix_fallocate(file.get(), 0, static_cast<off_t>(mapped_));
    if (code != 0) fail(name, bytes_, "reserve", code);
  }

  void check_size(const File& file, const std::string& name) {
    struct stat info{};
    if (fstat(file.get(), &info) != 0) fail(name, bytes_, "inspect", errno);
    check(static_cast<size_t>(info.st_size) >= mapped_, "[shared_mapping] expected at most ",
          info.st_size, " bytes, the size of '", name, "', got ", bytes_);
  }

  void map(const File& file, const std::string& name) {
    data_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (data_ == MAP_FAILED) fail(name, bytes_, "map", errno);
  }

  // A forked child holds a copy of this object; only the process that made the name removes it.
  void unlink_if_creator() {
    if (creator_ == getpid()) shm_unlink(path_.c_str());
  }

  const std::string path_;
  const size_t mapped_;
  pid_t creator_ = -1;
};

class ExternalBlock : public Block {
 public:
  ExternalBlock(void* data, size_t bytes, std::function<void()> release)
      : release_(std::move(release)) {
    data_ = data;
    bytes_ = bytes;
  }
  ~ExternalBlock() override {
    if (release_) release_();
  }

 private:
  const std::function<void()> release_;
};

}  // namespace

BlockRef shared_mapping(const std::string& name, size_t bytes, bool create) {
  return std::make_shared<SharedBlock>(name, bytes, create);
}

BlockRef external(void* data, size_t bytes, std::function<void()> release) {
  return std::make_shared<ExternalBlock>(data, bytes, std::move(release));
}

}  // namespace mixflow::storage
