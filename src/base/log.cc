#include "base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace afd::base {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return spdlog::level::trace;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

/// Not in spdlog's registry, which a program that uses spdlog itself may configure or shut down,
/// and never destroyed, since threads may log while the process exits.
spdlog::logger& logger() {
  static spdlog::logger* const instance = [] {
    auto* created = new spdlog::logger("afd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    created->set_level(spdlog::level::warn);
    created->set_pattern("%Y-%m-%d %H:%M:%S.%e [%P] %l: %v");
    return created;
  }();
  return *instance;
}

}  // namespace

void log(LogLevel level, std::string_view message,
         std::initializer_list<LogField> fields) noexcept {
  if (!log_enabled(level)) {
    return;
  }
  try {
    std::string line(message);
    for (const LogField& field : fields) {
      line += ' ';
      line += field.key;
      line += '=';
      line += field.value;
    }
    logger().log(to_spdlog(level), line);
  } catch (...) {
    // Out of memory while logging: what was going on matters more than the line.
  }
}

void set_log_level(LogLevel level) noexcept {
  logger().set_level(to_spdlog(level));
}

bool log_enabled(LogLevel level) noexcept {
  return level != LogLevel::kOff && logger().should_log(to_spdlog(level));
}

}  // namespace afd::base
