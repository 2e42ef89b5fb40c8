// The parts of the suite, one a rule. Each returns its cases in reading order.
#pragma once

#include <vector>

#include "conformance/conformance.h"

namespace afd::conformance {

std::vector<Case> r1_identity_cases();
std::vector<Case> r2_order_cases();
std::vector<Case> r3_no_hidden_wait_cases();
std::vector<Case> r4_borrow_cases();
std::vector<Case> r5_in_place_cases();
std::vector<Case> r6_deadline_cases();
std::vector<Case> r7_peer_loss_cases();
std::vector<Case> r8_close_cases();
std::vector<Case> r9_all_or_nothing_cases();
std::vector<Case> r10_role_cases();
std::vector<Case> r11_quiet_cases();
std::vector<Case> r12_idle_cases();
std::vector<Case> sweep_cases();

}  // namespace afd::conformance
