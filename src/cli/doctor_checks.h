// What `afd doctor` looks at. Each check says what it found, also where that is "not found".
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace afd::cli {

enum class Health {
  kGood,
  kNote,     ///< Good to know: something optional is missing, or slow.
  kProblem,  ///< Jobs on this machine will fail.
};
std::string_view to_string(Health health);

struct Finding {
  Health health = Health::kGood;
  std::string found;  ///< One line.
};

struct DoctorCheck {
  const char* name;
  std::function<Finding()> look;  ///< May take some milliseconds.
};

struct DoctorOptions {
  bool sweep = false;  ///< Remove segments whose creator is dead.
};

std::vector<DoctorCheck> doctor_checks(const DoctorOptions& options);

}  // namespace afd::cli
