#include "benchmarks/kernels/machine_bounds.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "benchmarks/report.h"
#include "core/check.h"
#include "core/parallel.h"

namespace quire::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPasses = 7;
constexpr std::int64_t kChains = 8;        // independent sums, enough to hide the latency of an instruction
constexpr std::int64_t kRounds = 400'000;  // milliseconds

// Results go where the compiler must assume that somebody reads them.
void keep(const void* data) { asm volatile("" : : "r"(data) : "memory"); }

// The best of several passes of `work`, called once on every thread, in units a second.
template <typename Work>
double best_rate(ThreadPool& pool, double units, const Work& work) {
  double best = 0.0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = Clock::now();
    pool.parallel_for(pool.num_threads(), 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) work();
    });
    best = std::max(best, units / seconds_since(start));
  }
  return best;
}

#if defined(__x86_64__)

// Each round: kChains times a product of 32 pairs of bytes added to 16-bit sums. An empty asm hides that inputs never change.
__attribute__((target("avx2"))) void integer_loop_avx2() {
  __m256i sums[kChains], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (std::int64_t round = 0; round < kRounds; ++round) {
    asm volatile("" : "+x"(a), "+x"(b));
    for (__m256i& sum : sums) {
      __m256i product;
      asm volatile("vpmaddubsw %2, %1, %0" : "=x"(product) : "x"(a), "x"(b));
      sum = _mm256_add_epi16(sum, product);
    }
  }
  keep(sums);
}

__attribute__((target("avx512f,avx512vnni"))) void integer_loop_avx512() {
  __m512i sums[kChains], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (std::int64_t round = 0; round < kRounds; ++round) {
    asm volatile("" : "+v"(a), "+v"(b));
    for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, b);
  }
  keep(sums);
}

__attribute__((target("avx2,fma"))) void float_loop_avx2() {
  __m256 sums[kChains], a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(1e-3f);
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (std::int64_t round = 0; round < kRounds; ++round) {
    asm volatile("" : "+x"(a), "+x"(b));
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(a, b, sum);
  }
  keep(sums);
}

__attribute__((target("avx512f"))) void float_loop_avx512() {
  __m512 sums[kChains], a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(1e-3f);
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (std::int64_t round = 0; round < kRounds; ++round) {
    asm volatile("" : "+v"(a), "+v"(b));
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(a, b, sum);
  }
  keep(sums);
}

#endif

double read_bandwidth(ThreadPool& pool, std::int64_t bytes) {
  constexpr std::int64_t kLine = 64, kPiece = 1 << 16;
  const std::vector<std::uint64_t> buffer(static_cast<std::size_t>(bytes / 8), 1);
  const auto words = static_cast<std::int64_t>(buffer.size());
  std::atomic<std::uint64_t> total = 0;
  double best = 0.0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = Clock::now();
    pool.parallel_for(words / kPiece + 1, 1, [&](std::int64_t begin, std::int64_t end, int) {
      std::uint64_t sums[kLine / 8] = {};
      for (std::int64_t i = begin * kPiece; i + kLine / 8 <= std::min(end * kPiece, words); i += kLine / 8)
        for (std::int64_t lane = 0; lane < kLine / 8; ++lane) sums[lane] += buffer[static_cast<std::size_t>(i + lane)];
      for (const std::uint64_t sum : sums) total += sum;
    });
    best = std::max(best, static_cast<double>(bytes) / seconds_since(start));
  }
  keep(&total);
  return best;
}

std::optional<double> peak_integer_rate(ThreadPool& pool, std::string_view isa) {
#if defined(__x86_64__)
  const double products = static_cast<double>(pool.num_threads() * kRounds * kChains);
  if (isa == "avx2" && __builtin_cpu_supports("avx2")) return best_rate(pool, products * 2 * 32, integer_loop_avx2);
  if (isa.starts_with("avx512") && __builtin_cpu_supports("avx512vnni"))
    return best_rate(pool, products * 2 * 64, integer_loop_avx512);
#else
  (void)pool, (void)isa;
#endif
  return std::nullopt;
}

std::optional<double> peak_float_rate(ThreadPool& pool, std::string_view isa) {
#if defined(__x86_64__)
  const double products = static_cast<double>(pool.num_threads() * kRounds * kChains);
  if (isa == "avx2" && __builtin_cpu_supports("fma")) return best_rate(pool, products * 2 * 8, float_loop_avx2);
  if (isa.starts_with("avx512") && __builtin_cpu_supports("avx512f"))
    return best_rate(pool, products * 2 * 16, float_loop_avx512);
#else
  (void)pool, (void)isa;
#endif
  return std::nullopt;
}

}  // namespace

const cpu::KernelTable& kernels_named(const std::string& isa) {
  if (isa.empty()) return cpu::best_kernels();
  if (const cpu::KernelTable* kernels = cpu::find_kernels(isa)) return *kernels;
  fail(ErrorCode::kUnsupported, "this machine or build has no '{}' kernels", isa);
}

MachineBounds measure_bounds(std::string_view isa, int num_threads, std::int64_t bytes) {
  ThreadPool pool(num_threads);
  return {.bytes_per_s = read_bandwidth(pool, bytes),
          .integer_ops_per_s = peak_integer_rate(pool, isa),
          .float_ops_per_s = peak_float_rate(pool, isa)};
}

void add_bounds(boost::json::object& report, const MachineBounds& bounds) {
  const auto giga = [](std::optional<double> rate) {
    return rate ? boost::json::value(*rate * 1e-9) : boost::json::value(nullptr);
  };
  report["read_gb_per_s"] = bounds.bytes_per_s * 1e-9;
  report["integer_gop_per_s"] = giga(bounds.integer_ops_per_s);
  report["float_gflop_per_s"] = giga(bounds.float_ops_per_s);
}

Share share_of_bound(double bytes, double operations, double seconds, double bytes_per_s, std::optional<double> peak) {
  const double memory = bytes / bytes_per_s, compute = peak ? operations / *peak : 0.0;
  return memory >= compute ? Share{memory / seconds, "bandwidth"} : Share{compute / seconds, "peak"};
}

}  // namespace quire::bench
