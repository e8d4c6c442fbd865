// open, poll and write, with the signal that a pipe's end sends left out.
#include "base/files/descriptor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

namespace shardrun {
namespace {

constexpr long kStep = 20;  // ms between two looks for a reader
constexpr int kLooks = 100;
constexpr size_t kBuffer = 1 << 16;

bool is_pipe(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISFIFO(info.st_mode);
}

/// While it lives, writing to a pipe without a reader fails with EPIPE on this thread and raises
/// nothing.
class WithoutSigPipe {
 public:
  WithoutSigPipe() {
    sigset_t pending;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigPipe() {
    const int error = errno;
    const timespec now{0, 0};
    if (!was_pending_) sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  WithoutSigPipe(const WithoutSigPipe&) = delete;
  WithoutSigPipe& operator=(const WithoutSigPipe&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_ = false;
};

}  // namespace

Descriptor::Descriptor(const std::string& path, int flags) {
  for (int look = 0;; ++look) {
    fd_ = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | flags, 0666);
    if (fd_ >= 0) return;
    const bool unread = errno == ENXIO && is_pipe(path);
    error_ = unread ? "nobody reads this pipe" : std::strerror(errno);
    if (!unread || look == kLooks) return;
    const timespec pause{0, kStep * 1000000};
    nanosleep(&pause, nullptr);
  }
}

Descriptor::~Descriptor() { close(); }

Descriptor::Descriptor(Descriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), error_(std::move(other.error_)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  close();
  fd_ = std::exchange(other.fd_, -1);
  error_ = std::move(other.error_);
  return *this;
}

size_t Descriptor::write(std::string_view bytes, int patience) {
  const WithoutSigPipe quiet;
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t n = ::write(fd_, bytes.data() + written, bytes.size() - written);
    if (n > 0) {
      written += static_cast<size_t>(n);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      pollfd space{fd_, POLLOUT, 0};
      if (::poll(&space, 1, patience) > 0) continue;
      error_ = "nobody takes what this pipe holds";
      return written;
    }
    error_ = n < 0 ? std::strerror(errno) : "nothing more fits";
    return written;
  }
  return written;
}

bool Descriptor::seek(int64_t offset) {
  if (::lseek(fd_, offset, SEEK_SET) == offset) return true;
  error_ = std::strerror(errno);
  return false;
}

bool Descriptor::close() {
  if (fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0) return true;
  error_ = std::strerror(errno);
  return false;
}

DescriptorBuffer::DescriptorBuffer(Descriptor& to) : to_(to), bytes_(kBuffer) {
  setp(bytes_.data(), bytes_.data() + bytes_.size());
}

bool DescriptorBuffer::flush() {
  const std::string_view held(pbase(), static_cast<size_t>(pptr() - pbase()));
  const bool written = held.empty() || to_.write(held, kPatience) == held.size();
  setp(bytes_.data(), bytes_.data() + bytes_.size());
  return written;
}

int DescriptorBuffer::overflow(int c) {
  if (!flush()) return traits_type::eof();
  if (!traits_type::eq_int_type(c, traits_type::eof())) sputc(traits_type::to_char_type(c));
  return traits_type::not_eof(c);
}

int DescriptorBuffer::sync() { return flush() ? 0 : -1; }

DescriptorBuffer::pos_type DescriptorBuffer::seekpos(pos_type at, std::ios_base::openmode) {
  return flush() && to_.seek(at) ? at : pos_type(off_type(-1));
}

std::streamsize DescriptorBuffer::xsputn(const char* from, std::streamsize count) {
  if (count < epptr() - pptr()) {
    std::memcpy(pptr(), from, static_cast<size_t>(count));
    pbump(static_cast<int>(count));
    return count;
  }
  if (!flush()) return 0;
  return static_cast<std::streamsize>(
      to_.write(std::string_view(from, static_cast<size_t>(count)), kPatience));
}

}  // namespace shardrun
