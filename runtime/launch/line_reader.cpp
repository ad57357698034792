#include "runtime/launch/line_reader.h"

#include <cerrno>

namespace foresail {

void LineReader::drain(const std::function<void(std::string_view)>& on_bytes,
                       const std::function<void(std::string_view)>& on_line) {
  char buffer[64 << 10];
  while (!ended_) {
    const ssize_t length = read(descriptor_, buffer, sizeof(buffer));
    if (length < 0 && errno == EINTR) continue;
    if (length < 0 && errno == EAGAIN) return;
    if (length <= 0) {
      ended_ = true;
      return;
    }
    const std::string_view piece(buffer, static_cast<size_t>(length));
    on_bytes(piece);
    partial_ += piece;
    size_t begin = 0;
    for (size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      on_line(std::string_view(partial_).substr(begin, end - begin));
    }
    partial_.erase(0, begin);
    // A line that never ends (progress rewritten with carriage returns) must not grow without bound.
    if (partial_.size() > (1u << 20)) partial_.erase(0, partial_.size() - (64u << 10));
  }
}

void LineReader::finish(const std::function<void(std::string_view)>& on_line) {
  if (!partial_.empty()) on_line(partial_);
  partial_.clear();
}

}  // namespace foresail
