// Counts of durations in buckets that grow with the value: quantiles within 3 %, fixed memory,
// nothing allocated while it records.
//
// Threads: one at a time.
#pragma once

#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace afd::runtime {

class Histogram {
 public:
  void record(std::chrono::nanoseconds duration) {
    const auto ns = static_cast<std::uint64_t>(duration.count() < 0 ? 0 : duration.count());
    ++counts_[bucket_of(ns)];
    ++num_samples_;
    total_ns_ += ns;
  }

  std::uint64_t num_samples() const { return num_samples_; }
  double total_us() const { return static_cast<double>(total_ns_) / 1e3; }
  double mean_us() const {
    return num_samples_ == 0 ? 0.0 : total_us() / static_cast<double>(num_samples_);
  }

  /// The middle of the bucket in which the sample of rank ceil(q * n) lies; 0 without samples.
  double quantile_us(double q) const;

  void merge(const Histogram& other);

  /// Buckets that are not empty, for a message to another process.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> sparse() const;
  /// Adds what sparse() gave. Returns false, and adds nothing, for a bucket that does not exist.
  bool add_sparse(const std::vector<std::pair<std::uint32_t, std::uint64_t>>& buckets,
                  std::uint64_t total_ns);
  std::uint64_t total_ns() const { return total_ns_; }

 private:
  // Values below 32 have a bucket each; above, 32 buckets to each doubling.
  static constexpr std::uint32_t kSubBits = 5;
  static constexpr std::uint32_t kSub = 1u << kSubBits;
  static constexpr std::uint32_t kNumBuckets = (64 - kSubBits + 1) * kSub;

  static std::uint32_t bucket_of(std::uint64_t ns) {
    if (ns < kSub) {
      return static_cast<std::uint32_t>(ns);
    }
    const auto shift = static_cast<std::uint32_t>(std::bit_width(ns)) - kSubBits - 1;
    return (shift + 1) * kSub + static_cast<std::uint32_t>((ns >> shift) - kSub);
  }
  static double middle_ns(std::uint32_t bucket);

  // On the heap: several of these stand in one function's frame.
  std::vector<std::uint64_t> counts_ = std::vector<std::uint64_t>(kNumBuckets);
  std::uint64_t num_samples_ = 0;
  std::uint64_t total_ns_ = 0;
};

}  // namespace afd::runtime
