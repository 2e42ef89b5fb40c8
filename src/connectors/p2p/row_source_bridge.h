// Turns the transport's byte ranges into the caller's row ranges.
#pragma once

#include <cstddef>
#include <cstdint>

#include <afd/connector.h>
#include <afd/factory.h>

#include "transport/transport.h"

namespace afd::p2p {

/// Lives on the stack of a send, as long as the publish that it serves.
class RowSourceBridge {
 public:
  /// @param first_row  the row of the caller's tensor with which the peer's share begins
  RowSourceBridge(const RowSource& source, const TransferLimits& limits, std::uint32_t first_row)
      : source_(source), limits_(limits), first_row_(first_row) {}

  /// Without `produce` where the caller gave none.
  transport::ByteSource byte_source() {
    if (source_.produce == nullptr) {
      return {};
    }
    return {this, &RowSourceBridge::produce, row_bytes()};
  }

 private:
  std::uint64_t row_bytes() const {
    return std::uint64_t{limits_.hidden_size} * limits_.dtype.size_bytes();
  }

  static void produce(void* argument, std::byte* destination, std::uint64_t offset,
                      std::uint64_t size) {
    const RowSourceBridge& self = *static_cast<const RowSourceBridge*>(argument);
    const RowRange range{
        .first_row = self.first_row_ + static_cast<std::uint32_t>(offset / self.row_bytes()),
        .num_rows = static_cast<std::uint32_t>(size / self.row_bytes())};
    self.source_.produce(
        self.source_.argument,
        TensorView{destination, {range.num_rows, self.limits_.hidden_size}, self.limits_.dtype, {}},
        range);
  }

  const RowSource& source_;
  const TransferLimits& limits_;
  std::uint32_t first_row_;
};

}  // namespace afd::p2p
