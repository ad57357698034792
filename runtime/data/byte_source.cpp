#include "runtime/data/byte_source.h"

#include <zlib.h>
#include <zstd.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "runtime/io/posix_file.h"

namespace foresail {
namespace {

constexpr size_t kInputBytes = size_t{1} << 18;

[[noreturn]] void fail(const PosixFile& file, const std::string& cause) {
  throw_bad_input(file.path().string(), cause, "fetch the file again");
}

class PlainSource final : public ByteSource {
 public:
  explicit PlainSource(PosixFile file) : file_(std::move(file)) {}
  int64_t read(std::span<char> out) override {
    const int64_t got = file_.read_some_at(position_, std::as_writable_bytes(out));
    position_ += got;
    return got;
  }

 private:
  PosixFile file_;
  int64_t position_ = 0;
};

// Compressed bytes, piece by piece.
class Input {
 public:
  explicit Input(PosixFile file) : file_(std::move(file)), buffer_(kInputBytes) {}
  const PosixFile& file() const { return file_; }
  /// The next piece; empty at the end.
  std::span<const std::byte> next() {
    const int64_t got = file_.read_some_at(position_, buffer_);
    position_ += got;
    return std::span(buffer_).first(static_cast<size_t>(got));
  }

 private:
  PosixFile file_;
  std::vector<std::byte> buffer_;
  int64_t position_ = 0;
};

class GzipSource final : public ByteSource {
 public:
  explicit GzipSource(PosixFile file) : input_(std::move(file)) {
    constexpr int kGzipWindow = 15 + 16;  // largest window, gzip wrapper
    ensure(inflateInit2(&stream_, kGzipWindow) == Z_OK, "zlib starts");
  }
  ~GzipSource() override { inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  int64_t read(std::span<char> out) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(std::min<size_t>(out.size(), size_t{1} << 30));
    const uInt wanted = stream_.avail_out;
    while (stream_.avail_out == wanted) {
      if (stream_.avail_in == 0 && !refill()) {
        if (!between_members_) fail(input_.file(), "ends inside its gzip data");
        return 0;
      }
      if (between_members_) inflateReset(&stream_);  // a file may hold several gzip members
      between_members_ = false;
      const int code = inflate(&stream_, Z_NO_FLUSH);
      if (code == Z_STREAM_END) {
        between_members_ = true;
      } else if (code != Z_OK && code != Z_BUF_ERROR) {
        fail(input_.file(),
             std::string("has damaged gzip data: ") + (stream_.msg != nullptr ? stream_.msg : "no detail"));
      }
    }
    return wanted - stream_.avail_out;
  }

 private:
  bool refill() {
    const auto piece = input_.next();
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(piece.data()));
    stream_.avail_in = static_cast<uInt>(piece.size());
    return !piece.empty();
  }

  Input input_;
  z_stream stream_{};
  bool between_members_ = false;
};

class ZstdSource final : public ByteSource {
 public:
  explicit ZstdSource(PosixFile file) : input_(std::move(file)), stream_(ZSTD_createDStream(), ZSTD_freeDStream) {
    ensure(stream_ != nullptr, "zstd starts");
  }

  int64_t read(std::span<char> out) override {
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    while (output.pos == 0) {
      // After a call that filled its output the decoder may hold more: it is asked again before it gets new input.
      if (!output_filled_ && pending_.pos == pending_.size && !refill()) {
        if (!frame_complete_) fail(input_.file(), "ends inside its zstd data");
        return 0;
      }
      const size_t code = ZSTD_decompressStream(stream_.get(), &output, &pending_);
      if (ZSTD_isError(code)) fail(input_.file(), std::string("has damaged zstd data: ") + ZSTD_getErrorName(code));
      frame_complete_ = code == 0;
      output_filled_ = output.pos == output.size && !frame_complete_;
    }
    return static_cast<int64_t>(output.pos);
  }

 private:
  bool refill() {
    const auto piece = input_.next();
    pending_ = {piece.data(), piece.size(), 0};
    return !piece.empty();
  }

  Input input_;
  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
  ZSTD_inBuffer pending_{nullptr, 0, 0};
  bool frame_complete_ = false, output_filled_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> open_byte_source(const std::filesystem::path& path) {
  PosixFile file = PosixFile::open_to_read(path);
  std::array<std::byte, 4> magic{};
  const int64_t got = file.read_some_at(0, magic);
  constexpr std::array kGzip = {std::byte{0x1f}, std::byte{0x8b}};
  constexpr std::array kZstd = {std::byte{0x28}, std::byte{0xb5}, std::byte{0x2f}, std::byte{0xfd}};
  if (got >= 2 && std::memcmp(magic.data(), kGzip.data(), kGzip.size()) == 0) {
    return std::make_unique<GzipSource>(std::move(file));
  }
  if (got == 4 && std::memcmp(magic.data(), kZstd.data(), kZstd.size()) == 0) {
    return std::make_unique<ZstdSource>(std::move(file));
  }
  return std::make_unique<PlainSource>(std::move(file));
}

}  // namespace foresail
