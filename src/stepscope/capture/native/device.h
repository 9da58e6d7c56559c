// Device work, attributed to the context that launched it.
//
// A vendor's library says twice what happens: in the launching thread, with a number, and later in
// a thread of its own, with the number and the times. The first is remembered until the second.
#pragma once
#include <cstdint>
#include <string>

namespace stepscope {

struct Collector;

// -- what a vendor's side calls

// A call into the driver's library begins in this thread; `number` is that of the work it launches.
void call_begins(const char* function, uint64_t number);
void call_ends(uint64_t number);

// Work that was launched under `number` ran from `begin_ns` to `end_ns`, by the device's clock.
// `type` is kernel, memcpy or memset.
void work_done(uint64_t number, const std::string& name, const char* type, uint64_t begin_ns,
               uint64_t end_ns);

// A kernel as people know it.
std::string readable_kernel(const char* symbol);

// -- what the collector calls

// Whether any device is followed now. `hindered` says why one that is there is not.
bool start_devices(std::string& hindered);
// Fetch what the devices have finished.
void flush_devices();
void stop_devices();

struct Vendor {
  const char* name;
  bool (*is_here)();       // whether this machine, or this process, has the vendor's driver
  std::string (*probe)();  // why its devices cannot be followed here
  std::string (*start)();
  void (*flush)();
  void (*stop)();
};
extern const Vendor kNvidia, kAmd;

}  // namespace stepscope
