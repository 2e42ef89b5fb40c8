#include "mailbox.h"

#include <algorithm>
#include <chrono>
#include <map>

namespace mailbox {

std::string rank_name(afd::Role role) {
  return std::string(to_string(role)) + " rank 0";
}

afd::Role other(afd::Role role) {
  return role == afd::Role::kAttention ? afd::Role::kFfn : afd::Role::kAttention;
}

/// Jobs whose second rank has not come yet, by address.
struct Mailbox::Meetings {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<Mailbox>> open;
};

Mailbox::Meetings& Mailbox::meetings() {
  static Meetings instance;
  return instance;
}

void Mailbox::wake_meetings() {
  const std::scoped_lock lock(meetings().mutex);
  meetings().changed.notify_all();
}

namespace {

/// Names the first key that differs, with both values; empty if none does.
std::string find_mismatch(const std::vector<std::pair<std::string, std::string>>& first,
                          const std::vector<std::pair<std::string, std::string>>& second,
                          afd::Role second_role) {
  for (const auto& [key, value] : second) {
    const auto found = std::find_if(first.begin(), first.end(),
                                    [&](const auto& pair) { return pair.first == key; });
    const std::string firsts = found == first.end() ? "none" : found->second;
    if (firsts != value) {
      return key + " differs: " + rank_name(other(second_role)) + " has " + firsts + ", " +
             rank_name(second_role) + " has " + value;
    }
  }
  return {};
}

}  // namespace

afd::Result<std::shared_ptr<Mailbox>> Mailbox::meet(const MeetOptions& options,
                                                    afd::Deadline deadline) {
  Meetings& all = meetings();
  std::unique_lock lock(all.mutex);
  const auto me = static_cast<std::size_t>(options.role);
  std::shared_ptr<Mailbox>& place = all.open[options.address];

  if (place != nullptr && place->present_[me]) {
    return afd::fail(afd::ErrorCode::kInvalidArgument,
                     rank_name(options.role) + " is already present at " + options.address);
  }
  if (place != nullptr) {  // The other rank waits: this one completes the job.
    const std::shared_ptr<Mailbox> box = place;
    all.open.erase(options.address);
    box->mismatch_ = find_mismatch(box->must_match_, options.must_match, options.role);
    if (box->mismatch_.empty()) {
      for (std::vector<Slot>& direction : box->slots_) {
        direction = std::vector<Slot>(options.num_stages);
        for (Slot& slot : direction) {
          slot.rows.resize(options.stage_bytes);
        }
      }
      box->complete_ = true;
    }
    all.changed.notify_all();
    if (!box->complete_) {
      return afd::fail(afd::ErrorCode::kProtocolMismatch, box->mismatch_);
    }
    return box;
  }

  place = std::make_shared<Mailbox>();
  const std::shared_ptr<Mailbox> box = place;
  box->present_[me] = true;
  box->must_match_ = options.must_match;
  while (!box->complete_ && box->mismatch_.empty()) {
    const bool stopped = options.stop != nullptr && options.stop->load();
    if (stopped || deadline.expired()) {
      all.open.erase(options.address);
      return stopped ? afd::fail(afd::ErrorCode::kFailedPrecondition, "closed during init")
                     : afd::fail(afd::ErrorCode::kDeadlineExceeded, rank_name(other(options.role)) +
                                                                        " did not arrive at " +
                                                                        options.address);
    }
    const auto second = afd::Deadline::Clock::now() + std::chrono::seconds(1);
    const auto until = std::min(second, deadline.when());
    if (all.changed.wait_until(lock, until) == std::cv_status::timeout && options.on_waiting) {
      lock.unlock();
      options.on_waiting(rank_name(other(options.role)));
      lock.lock();
    }
  }
  if (!box->complete_) {
    return afd::fail(afd::ErrorCode::kProtocolMismatch, box->mismatch_);
  }
  return box;
}

void Mailbox::publish(Slot& slot) {
  slot.published.fetch_add(1);
  wake();
}

void Mailbox::wake() {
  if (num_sleepers_.load() != 0) {
    const std::scoped_lock lock(mutex_);
    changed_.notify_all();
  }
}

bool Mailbox::try_push_control(const afd::ControlPayload& payload) {
  {
    const std::scoped_lock lock(mutex_);
    if (control_.size() == kControlMax) {
      return false;
    }
    control_.push_back(payload);
    num_control_.fetch_add(1);
  }
  wake();
  return true;
}

afd::ControlPayload Mailbox::pop_control() {
  afd::ControlPayload payload;
  {
    const std::scoped_lock lock(mutex_);
    payload = std::move(control_.front());
    control_.pop_front();
    num_control_.fetch_sub(1);
  }
  wake();
  return payload;
}

void Mailbox::leave(afd::Role role) {
  left_[static_cast<std::size_t>(role)].store(true);
  wake();
}

}  // namespace mailbox
