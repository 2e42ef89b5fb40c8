#include "runtime/histogram.h"

#include <algorithm>
#include <cmath>

namespace afd::runtime {

double Histogram::middle_ns(std::uint32_t bucket) {
  if (bucket < kSub) {
    return bucket;
  }
  const std::uint32_t shift = bucket / kSub - 1;
  const double width = std::ldexp(1.0, static_cast<int>(shift));
  const double low = (kSub + bucket % kSub) * width;
  return low + (width - 1.0) / 2.0;
}

double Histogram::quantile_us(double q) const {
  if (num_samples_ == 0) {
    return 0.0;
  }
  const double wanted = std::max(1.0, std::ceil(q * static_cast<double>(num_samples_)));
  std::uint64_t seen = 0;
  for (std::uint32_t bucket = 0; bucket < kNumBuckets; ++bucket) {
    seen += counts_[bucket];
    if (static_cast<double>(seen) >= wanted) {
      return middle_ns(bucket) / 1e3;
    }
  }
  return middle_ns(kNumBuckets - 1) / 1e3;
}

void Histogram::merge(const Histogram& other) {
  for (std::uint32_t bucket = 0; bucket < kNumBuckets; ++bucket) {
    counts_[bucket] += other.counts_[bucket];
  }
  num_samples_ += other.num_samples_;
  total_ns_ += other.total_ns_;
}

std::vector<std::pair<std::uint32_t, std::uint64_t>> Histogram::sparse() const {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> buckets;
  for (std::uint32_t bucket = 0; bucket < kNumBuckets; ++bucket) {
    if (counts_[bucket] != 0) {
      buckets.emplace_back(bucket, counts_[bucket]);
    }
  }
  return buckets;
}

bool Histogram::add_sparse(const std::vector<std::pair<std::uint32_t, std::uint64_t>>& buckets,
                           std::uint64_t total_ns) {
  for (const auto& [bucket, count] : buckets) {
    if (bucket >= kNumBuckets) {
      return false;
    }
  }
  for (const auto& [bucket, count] : buckets) {
    counts_[bucket] += count;
    num_samples_ += count;
  }
  total_ns_ += total_ns;
  return true;
}

}  // namespace afd::runtime
