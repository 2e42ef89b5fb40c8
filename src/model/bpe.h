// Byte-pair merging: bytes in, token ids out.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace afd::model {

/// Threads: immutable once filled.
class Bpe {
 public:
  /// Working memory of one thread.
  struct Work {
    struct Symbol {
      std::int32_t id;  ///< -1: merged into the one before.
      std::int32_t previous;
      std::int32_t next;
    };
    struct Candidate {
      std::uint32_t rank;
      std::int32_t left;
      std::int32_t left_id;
      std::int32_t right_id;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  void set_byte(std::uint8_t byte, std::int32_t id) { byte_ids_[byte] = id; }

  /// Merges come in the order of their rank. @return false where this pair was added before
  bool add_merge(std::int32_t left_id, std::int32_t right_id, std::int32_t merged_id);

  /// Appends the ids of one word. Of all pairs in it the one of lowest rank is merged, the leftmost
  /// of equals, until none is left: n log n for n bytes. At most 2^31 - 1 bytes.
  void encode(std::string_view word, Work& work, std::vector<std::int32_t>& ids) const;

 private:
  struct Merge {
    std::uint32_t rank;
    std::int32_t merged_id;
  };
  const Merge* find(std::int32_t left_id, std::int32_t right_id) const;
  void propose(std::int32_t left, Work& work) const;

  std::array<std::int32_t, 256> byte_ids_{};
  std::unordered_map<std::uint64_t, Merge> merges_;
};

}  // namespace afd::model
