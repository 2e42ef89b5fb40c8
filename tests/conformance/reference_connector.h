// A connector within one process that is meant to be read, not to be fast: it keeps all rules with
// a mailbox a lane and one condition variable, so that the suite can be judged before what it
// judges, and it can break one rule on demand, so that the suite can be seen to notice.
#pragma once

#include <cstdint>
#include <string_view>

#include "conformance/conformance.h"

namespace afd::conformance {

/// What a reference connector does wrong. The first two characters behind the k name the rule.
enum class Fault : std::uint8_t {
  kNone,
  kR1TakesWhatComes,  ///< compares no header
  kR1ComparesNothingInInit,
  kR1KeepsTheFirstCallsView,  ///< of router logits, where a receive is repeated
  kR2ServesStagesInSendOrder,
  kR2ConcatenatesInArrivalOrder,
  kR3WaitsForTheReceiver,
  kR4WritesIntoWhatItBorrowed,
  kR4LendsOutWhatItBorrowed,  ///< the receiver's view is the sender's tensor
  kR5LandsAllStagesInOnePlace,
  kR5ClearsViewsWithTheStep,
  kR6NamesNobody,
  kR6ForgetsWhatHadArrived,
  kR7NoticesNoDeath,
  kR7NamesNobody,
  kR8WakesNobody,
  kR8LeavesADescriptor,
  kR8LeavesAThread,
  kR8InitialisesOnce,
  kR9ChecksLogitsAfterSending,
  kR9TakesAnyShares,  ///< sends FFN output by the caller's seq_lens
  kR10IgnoresRoles,
  kR10OverwritesAnOpenTransfer,
  kR11Allocates,
  kR11Locks,
  kR11LocksShared,
  kR11MakesASystemCall,
  kR11TouchesANewPage,
  kR11YieldsWhileItSpins,
  kR12SpinsForEver
};

/// "R1TakesWhatComes".
std::string_view to_string(Fault fault);

/// Ready to be judged. With a fault the patience is short, since some faults hang.
ConnectorUnderTest reference_connector(Fault fault = Fault::kNone);
/// The same with other abilities: in_place_buffers may be false, and progressive_rows true.
ConnectorUnderTest reference_connector(Fault fault, const Capabilities& capabilities);

}  // namespace afd::conformance
