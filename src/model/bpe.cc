#include "model/bpe.h"

#include <algorithm>

namespace afd::model {
namespace {

std::uint64_t pair_key(std::int32_t left_id, std::int32_t right_id) {
  return std::uint64_t{static_cast<std::uint32_t>(left_id)} << 32 |
         static_cast<std::uint32_t>(right_id);
}

/// For a heap with the best candidate on top.
bool is_worse(const Bpe::Work::Candidate& a, const Bpe::Work::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

}  // namespace

bool Bpe::add_merge(std::int32_t left_id, std::int32_t right_id, std::int32_t merged_id) {
  const auto rank = static_cast<std::uint32_t>(merges_.size());
  return merges_.try_emplace(pair_key(left_id, right_id), Merge{rank, merged_id}).second;
}

const Bpe::Merge* Bpe::find(std::int32_t left_id, std::int32_t right_id) const {
  const auto found = merges_.find(pair_key(left_id, right_id));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::propose(std::int32_t left, Work& work) const {
  const Work::Symbol& symbol = work.symbols[static_cast<std::size_t>(left)];
  if (symbol.next < 0) {
    return;
  }
  const std::int32_t right_id = work.symbols[static_cast<std::size_t>(symbol.next)].id;
  if (const Merge* merge = find(symbol.id, right_id); merge != nullptr) {
    work.heap.push_back({merge->rank, left, symbol.id, right_id});
    std::push_heap(work.heap.begin(), work.heap.end(), is_worse);
  }
}

void Bpe::encode(std::string_view word, Work& work, std::vector<std::int32_t>& ids) const {
  const auto size = static_cast<std::int32_t>(word.size());
  work.symbols.clear();
  work.heap.clear();
  for (std::int32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<std::uint8_t>(word[static_cast<std::size_t>(i)]);
    work.symbols.push_back({byte_ids_[byte], i - 1, i + 1 < size ? i + 1 : -1});
  }
  for (std::int32_t i = 0; i < size; ++i) {
    propose(i, work);
  }
  while (!work.heap.empty()) {
    std::pop_heap(work.heap.begin(), work.heap.end(), is_worse);
    const Work::Candidate candidate = work.heap.back();
    work.heap.pop_back();
    Work::Symbol& left = work.symbols[static_cast<std::size_t>(candidate.left)];
    if (left.id != candidate.left_id || left.next < 0) {
      continue;  // One of the two was merged since.
    }
    Work::Symbol& right = work.symbols[static_cast<std::size_t>(left.next)];
    if (right.id != candidate.right_id) {
      continue;
    }
    left.id = find(candidate.left_id, candidate.right_id)->merged_id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) {
      work.symbols[static_cast<std::size_t>(left.next)].previous = candidate.left;
    }
    if (left.previous >= 0) {
      propose(left.previous, work);
    }
    propose(candidate.left, work);
  }
  for (const Work::Symbol& symbol : work.symbols) {
    if (symbol.id >= 0) {
      ids.push_back(symbol.id);
    }
  }
}

}  // namespace afd::model
