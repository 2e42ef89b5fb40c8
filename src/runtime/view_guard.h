// Between the thread that computes on a connector's memory and the one that closes the connector.
//
// Threads: Use on one, end() on any.
#pragma once

#include <mutex>
#include <utility>

namespace afd::runtime {

/// close() and give_up() release the memory that receives returned views of (R5), at any moment
/// where another thread calls them. With a guard they wait until nobody reads.
class ViewGuard {
 public:
  /// While it lives, views may be read and written. Inside, no call of the connector that waits.
  class Use {
   public:
    /// @param guard  null: nobody else closes the connector
    explicit Use(ViewGuard* guard) {
      if (guard != nullptr) {
        lock_ = std::unique_lock(guard->mutex_);
        ended_ = guard->ended_;
      }
    }
    /// Whether the views are still there.
    explicit operator bool() const { return !ended_; }

   private:
    std::unique_lock<std::mutex> lock_;
    bool ended_ = false;
  };

  /// Waits until nobody uses views, and then has `close` called: none can be used from then on.
  template <typename Close>
  void end(Close close) {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
    close();
  }

 private:
  std::mutex mutex_;
  bool ended_ = false;  ///< Guarded by mutex_.
};

}  // namespace afd::runtime
