// oneDNN 2.6 `matmul`: plain layouts, user-mode scratchpad, primitives built when a kernel is bound.
#include "kernels/cpu/gemm.h"

#include <fmt/format.h>
#include <omp.h>

#include <array>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>

#include "core/error.h"

namespace foresail {

struct GemmLibrary::Engine {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<GemmShape, dnnl::matmul::primitive_desc> described;
};

namespace {

/// The library sizes its scratch and splits its work by the team of the calling thread at the time it is asked.
class TeamScope {
 public:
  explicit TeamScope(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~TeamScope() { omp_set_num_threads(before_); }
  TeamScope(const TeamScope&) = delete;
  TeamScope& operator=(const TeamScope&) = delete;

 private:
  int before_;
};

dnnl::memory::desc describe(const GemmShape& shape, int64_t rows, int64_t columns, const GemmStrides& strides) {
  const auto type = dnnl::memory::data_type::f32;
  if (shape.outer == 1 && shape.inner == 1) return {{rows, columns}, type, {strides.row, strides.column}};
  return {{shape.outer, shape.inner, rows, columns}, type, {strides.outer, strides.inner, strides.row, strides.column}};
}

dnnl::matmul::primitive_desc describe(const GemmShape& shape, const dnnl::engine& engine) {
  const auto a = describe(shape, shape.m, shape.k, shape.a);
  const auto b = describe(shape, shape.k, shape.n, shape.b);
  const auto c = describe(shape, shape.m, shape.n, shape.c);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (shape.scale != 1) attributes.set_output_scales(0, {shape.scale});
  if (shape.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  if (!shape.bias) return {dnnl::matmul::desc(a, b, c), attributes, engine};
  const dnnl::memory::desc bias({1, shape.n}, dnnl::memory::data_type::f32, dnnl::memory::dims{shape.n, 1});
  return {dnnl::matmul::desc(a, b, bias, c), attributes, engine};
}

/// Reports a failure of the library as one line.
[[noreturn]] void report(const GemmShape& shape, const dnnl::error& error) {
  throw_environment(fmt::format("matrix product {}x{}x{}", shape.m, shape.n, shape.k),
                    fmt::format("oneDNN refused it: {}", error.what()),
                    "check the operator's shapes and the library's version");
}

void check(dnnl_status_t status, const char* call) {
  if (status != dnnl_success) {
    throw_environment("oneDNN", fmt::format("{} failed with status {}", call, static_cast<int>(status)),
                      "check the library's installation");
  }
}

class DnnlGemm : public Gemm {
 public:
  DnnlGemm(const dnnl::matmul::primitive_desc& described, const dnnl::engine& engine, const dnnl::stream& stream,
           bool bias)
      : primitive_(described),
        stream_(stream),
        a_(described.src_desc(), engine, nullptr),
        b_(described.weights_desc(), engine, nullptr),
        c_(described.dst_desc(), engine, nullptr),
        scratch_(described.scratchpad_desc(), engine, nullptr),
        threads_(omp_get_max_threads()),
        workspace_bytes_(static_cast<int64_t>(described.scratchpad_desc().get_size())) {
    arguments_ = {{{DNNL_ARG_SRC, a_.get()},
                   {DNNL_ARG_WEIGHTS, b_.get()},
                   {DNNL_ARG_DST, c_.get()},
                   {DNNL_ARG_SCRATCHPAD, scratch_.get()},
                   {DNNL_ARG_BIAS, nullptr}}};
    if (bias) {
      bias_ = dnnl::memory(described.bias_desc(), engine, nullptr);
      arguments_[4].memory = bias_.get();
    }
    argument_count_ = bias ? 5 : 4;
  }

  void run(const float* a, const float* b, const float* bias, float* c, void* workspace) override {
    ensure(omp_get_max_threads() == threads_, "a product runs with the team that it was built for");
    set(a_, a);
    set(b_, b);
    set(c_, c);
    set(scratch_, workspace);
    if (argument_count_ == 5) set(bias_, bias);
    // The C entry point takes an array: the C++ one would build a hash map at every call.
    check(dnnl_primitive_execute(primitive_.get(), stream_.get(), argument_count_, arguments_.data()), "execute");
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

 private:
  static void set(dnnl::memory& memory, const void* data) {
    check(dnnl_memory_set_data_handle(memory.get(), const_cast<void*>(data)), "set_data_handle");
  }

  dnnl::matmul primitive_;
  dnnl::stream stream_;
  dnnl::memory a_, b_, c_, scratch_, bias_;
  std::array<dnnl_exec_arg_t, 5> arguments_{};
  int argument_count_ = 0, threads_;
  int64_t workspace_bytes_ = 0;
};

const dnnl::matmul::primitive_desc& described(GemmLibrary& library, const GemmShape& shape,
                                              std::map<GemmShape, dnnl::matmul::primitive_desc>& known,
                                              const dnnl::engine& engine) {
  const auto found = known.find(shape);
  if (found != known.end()) return found->second;
  const TeamScope team(library.threads());
  try {
    return known.emplace(shape, describe(shape, engine)).first->second;
  } catch (const dnnl::error& error) {
    report(shape, error);
  }
}

}  // namespace

bool run_product(const GemmShape& shape, const float* a, const float* b, float* c) {
  ensure(shape.outer == 1 && shape.inner == 1 && !shape.bias && shape.scale == 1, "a plain product");
  const auto is_transposed = [](const GemmStrides& strides) { return strides.column != 1; };
  const auto leading = [&](const GemmStrides& s) { return is_transposed(s) ? s.column : s.row; };
  return dnnl_sgemm(is_transposed(shape.a) ? 'T' : 'N', is_transposed(shape.b) ? 'T' : 'N', shape.m, shape.n, shape.k,
                    1.0f, a, leading(shape.a), b, leading(shape.b), shape.accumulate ? 1.0f : 0.0f, c,
                    shape.c.row) == dnnl_success;
}

GemmLibrary::GemmLibrary(int threads) : threads_(threads), engine_(std::make_unique<Engine>()) {}
GemmLibrary::~GemmLibrary() = default;

std::unique_ptr<Gemm> GemmLibrary::build(const GemmShape& shape) {
  const auto& description = described(*this, shape, engine_->described, engine_->engine);
  const TeamScope team(threads_);
  try {
    return std::make_unique<DnnlGemm>(description, engine_->engine, engine_->stream, shape.bias);
  } catch (const dnnl::error& error) {
    report(shape, error);
  }
}

int64_t GemmLibrary::workspace_bytes(const GemmShape& shape) {
  return static_cast<int64_t>(
      described(*this, shape, engine_->described, engine_->engine).scratchpad_desc().get_size());
}

const char* GemmLibrary::implementation(const GemmShape& shape) {
  return described(*this, shape, engine_->described, engine_->engine).impl_info_str();
}

}  // namespace foresail
