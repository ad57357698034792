// Reads a non-blocking descriptor as it comes, and hands out its complete lines.
#pragma once

#include <unistd.h>

#include <functional>
#include <string>
#include <string_view>

namespace foresail {

class LineReader {
 public:
  explicit LineReader(int descriptor) : descriptor_(descriptor) {}
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;
  ~LineReader() { close(descriptor_); }
  int descriptor() const { return descriptor_; }
  bool ended() const { return ended_; }

  /// Reads all that is there. `on_bytes` gets every piece as it is, `on_line` every complete line without its newline.
  void drain(const std::function<void(std::string_view)>& on_bytes,
             const std::function<void(std::string_view)>& on_line);
  /// Hands out what is left without a newline.
  void finish(const std::function<void(std::string_view)>& on_line);

 private:
  int descriptor_;
  bool ended_ = false;
  std::string partial_;
};

}  // namespace foresail
