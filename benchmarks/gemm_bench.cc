// Products of few rows with the model's matrices: our panels against oneDNN and OpenBLAS.
//
// Answers: what does it cost that a row's bits may not depend on the batch? The counter
// `rows_differ` says how many of the rows come out otherwise when they are computed alone: layout
// invariance needs 0. Weights rotate over copies, so that they come from memory as they do in a
// model. Not measured: packing (once, at load). One thread. Speed of light: 2 FMAs a cycle, or
// memory.
#include <benchmark/benchmark.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/kernels.h"
#include "model/packed_matrix.h"

#ifdef AFD_BENCH_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>
#endif
#ifdef AFD_BENCH_OPENBLAS
#include <cblas.h>
extern "C" void openblas_set_num_threads(int num_threads);
#endif

namespace afd::model {
namespace {

struct Case {
  std::size_t m;
  std::size_t k;
  std::size_t n;
};

/// Copies that together exceed the caches, within reason.
std::size_t copies_of(const Case& c) {
  constexpr std::size_t kBytes = std::size_t{96} << 20;
  return std::clamp<std::size_t>(kBytes / (c.k * c.n * 2), 2, 64);
}

std::vector<float> random_floats(std::size_t count) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> values(count);
  for (float& value : values) {
    // Exact in bfloat16, so that all contestants multiply the same numbers.
    value = uniform(generator);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    bits &= 0xffff0000u;
    std::memcpy(&value, &bits, sizeof bits);
  }
  return values;
}

/// x [m, k] times weights number `copy`, into out [m, n].
class Contestant {
 public:
  virtual ~Contestant() = default;
  virtual void multiply(std::size_t copy, const float* x, std::size_t m, float* out) = 0;
};

class Panels final : public Contestant {
 public:
  Panels(const Case& c, DType dtype, const std::vector<float>& weights) : case_(c) {
    std::vector<std::uint16_t> halves(weights.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &weights[i], sizeof bits);
      halves[i] = static_cast<std::uint16_t>(bits >> 16);
    }
    const void* const data = dtype == kBFloat16 ? static_cast<const void*>(halves.data())
                                                : static_cast<const void*>(weights.data());
    for (std::size_t i = 0; i < copies_of(c); ++i) {
      matrices_.push_back(
          PackedMatrix::pack({{.tensor = {data, Shape{c.n, c.k}, dtype, {}}, .num_rows = c.n}},
                             arena_)
              .value());
    }
  }
  void multiply(std::size_t copy, const float* x, std::size_t m, float* out) override {
    matrices_[copy].multiply(*kernels_for(InstructionSet::kBest), x, case_.k, m, out, case_.n);
  }

 private:
  Case case_;
  Arena arena_;
  std::vector<PackedMatrix> matrices_;
};

#ifdef AFD_BENCH_ONEDNN
/// Weights in the layout that oneDNN likes best. `tile`: rows a call, 0 for all at once.
class OneDnn final : public Contestant {
 public:
  OneDnn(const Case& c, std::size_t tile, const std::vector<float>& weights)
      : case_(c), tile_(tile), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using Tag = dnnl::memory::format_tag;
    const auto shape = [](std::size_t a, std::size_t b) {
      return dnnl::memory::dims{static_cast<dnnl_dim_t>(a), static_cast<dnnl_dim_t>(b)};
    };
    for (std::size_t m = 1; m <= std::max(c.m, tile); ++m) {
      if (m != 1 && m != c.m && m != tile) {
        continue;
      }
      const dnnl::memory::desc x(shape(m, c.k), dnnl::memory::data_type::f32, Tag::ab);
      const dnnl::memory::desc any(shape(c.k, c.n), dnnl::memory::data_type::f32, Tag::any);
      const dnnl::memory::desc out(shape(m, c.n), dnnl::memory::data_type::f32, Tag::ab);
      const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(x, any, out), engine_);
      Sized sized{dnnl::matmul(description), x, out, {}};
      dnnl::memory plain({shape(c.k, c.n), dnnl::memory::data_type::f32, Tag::ba}, engine_,
                         const_cast<float*>(weights.data()));
      for (std::size_t i = 0; i < copies_of(c); ++i) {
        dnnl::memory packed(description.weights_desc(), engine_);
        dnnl::reorder(plain, packed).execute(stream_, plain, packed);
        sized.weights.push_back(packed);
      }
      stream_.wait();
      sized_.emplace(m, std::move(sized));
    }
    padded_x_.resize(tile * c.k);
    padded_out_.resize(tile * c.n);
  }
  void multiply(std::size_t copy, const float* x, std::size_t m, float* out) override {
    if (tile_ == 0) {
      run(copy, x, m, out);
      return;
    }
    for (std::size_t row = 0; row < m; row += tile_) {
      const std::size_t count = std::min(tile_, m - row);
      std::copy_n(x + row * case_.k, count * case_.k, padded_x_.begin());
      run(copy, padded_x_.data(), tile_, padded_out_.data());
      std::copy_n(padded_out_.begin(), count * case_.n, out + row * case_.n);
    }
  }

 private:
  struct Sized {
    dnnl::matmul primitive;
    dnnl::memory::desc x;
    dnnl::memory::desc out;
    std::vector<dnnl::memory> weights;
  };
  void run(std::size_t copy, const float* x, std::size_t m, float* out) {
    Sized& sized = sized_.at(m);
    dnnl::memory x_memory(sized.x, engine_, const_cast<float*>(x));
    dnnl::memory out_memory(sized.out, engine_, out);
    sized.primitive.execute(stream_, {{DNNL_ARG_SRC, x_memory},
                                      {DNNL_ARG_WEIGHTS, sized.weights[copy]},
                                      {DNNL_ARG_DST, out_memory}});
    stream_.wait();
  }

  Case case_;
  std::size_t tile_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::unordered_map<std::size_t, Sized> sized_;
  std::vector<float> padded_x_;
  std::vector<float> padded_out_;
};
#endif

#ifdef AFD_BENCH_OPENBLAS
class OpenBlas final : public Contestant {
 public:
  OpenBlas(const Case& c, const std::vector<float>& weights)
      : case_(c), copies_(copies_of(c), weights) {
    openblas_set_num_threads(1);
  }
  void multiply(std::size_t copy, const float* x, std::size_t m, float* out) override {
    const auto k = static_cast<int>(case_.k);
    const auto n = static_cast<int>(case_.n);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(m), n, k, 1.0f, x, k,
                copies_[copy].data(), k, 0.0f, out, n);
  }

 private:
  Case case_;
  std::vector<std::vector<float>> copies_;
};
#endif

std::unique_ptr<Contestant> make(const std::string& name, const Case& c,
                                 const std::vector<float>& weights) {
#ifdef AFD_BENCH_ONEDNN
  if (name == "onednn_f32") {
    return std::make_unique<OneDnn>(c, 0, weights);
  }
  if (name == "onednn_f32_tile8") {
    return std::make_unique<OneDnn>(c, 8, weights);
  }
#endif
#ifdef AFD_BENCH_OPENBLAS
  if (name == "openblas_f32") {
    return std::make_unique<OpenBlas>(c, weights);
  }
#endif
  return std::make_unique<Panels>(c, name == "panels_bf16" ? kBFloat16 : kFloat32, weights);
}

std::size_t rows_that_differ(Contestant& contestant, const Case& c, const std::vector<float>& x) {
  std::vector<float> together(c.m * c.n);
  std::vector<float> alone(c.n);
  contestant.multiply(0, x.data(), c.m, together.data());
  std::size_t count = 0;
  for (std::size_t row = 0; row < c.m; ++row) {
    contestant.multiply(0, x.data() + row * c.k, 1, alone.data());
    count += std::memcmp(alone.data(), &together[row * c.n], c.n * sizeof(float)) == 0 ? 0 : 1;
  }
  return count;
}

void run(benchmark::State& state, const std::string& name, const Case& c) {
  const std::vector<float> weights = random_floats(c.k * c.n);
  const std::vector<float> x = random_floats(c.m * c.k);
  std::vector<float> out(c.m * c.n);
  const std::unique_ptr<Contestant> contestant = make(name, c, weights);
  state.counters["rows_differ"] = static_cast<double>(rows_that_differ(*contestant, c, x));
  std::size_t copy = 0;
  for (auto _ : state) {
    contestant->multiply(copy, x.data(), c.m, out.data());
    benchmark::DoNotOptimize(out.data());
    copy = (copy + 1) % copies_of(c);
  }
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * static_cast<double>(c.m * c.k * c.n),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  std::vector<std::string> names = {"panels_bf16", "panels_f32"};
#ifdef AFD_BENCH_ONEDNN
  names.insert(names.end(), {"onednn_f32", "onednn_f32_tile8"});
#endif
#ifdef AFD_BENCH_OPENBLAS
  names.emplace_back("openblas_f32");
#endif
  struct Matrix {
    std::size_t k;
    std::size_t n;
  };
  // austen-moe: attention input, expert gate and up, expert down, LM head; DeepSeek-V2-Lite: expert
  // gate and up, expert down.
  for (const Matrix& matrix :
       {Matrix{256, 464}, {256, 160}, {80, 256}, {256, 2048}, {2048, 2816}, {1408, 2048}}) {
    for (std::size_t m : {1, 2, 4, 8, 16, 32, 128}) {
      for (const std::string& name : names) {
        const Case c{m, matrix.k, matrix.n};
        const std::string title = "k" + std::to_string(c.k) + "_n" + std::to_string(c.n) + "/m" +
                                  std::to_string(c.m) + "/" + name;
        benchmark::RegisterBenchmark(title.c_str(),
                                     [name, c](benchmark::State& state) { run(state, name, c); });
      }
    }
  }
}

/// oneDNN takes its threads from OpenMP's run time, which is loaded only where oneDNN is.
void use_one_thread() {
  using SetNumThreads = void (*)(int);
  void* const found = ::dlsym(RTLD_DEFAULT, "omp_set_num_threads");
  if (found != nullptr) {
    reinterpret_cast<SetNumThreads>(found)(1);
  }
}

}  // namespace
}  // namespace afd::model

int main(int argc, char** argv) {
  afd::model::use_one_thread();
  afd::model::register_all();
  benchmark::AddCustomContext("kernels",
                              afd::model::kernels_for(afd::model::InstructionSet::kBest)->name);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
