// Device work, attributed to the context that launched it.
//
// A vendor's library reports work twice: in the launching thread, with a correlation number, and later
// in its own thread, with the number and the times. The first report is kept until the second.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cubin_lines.h"
#include "keys.h"

namespace stepscope {

struct Collector;

// -- called by the vendors' adapters

// A driver call begins in this thread; `number` is the correlation number of its work (0: its work is
// not told), `arguments` writes those that are known as JSON, and is called only if somebody watches.
using Arguments = std::string (*)(const char* function, const void* parameters);
void call_begins(const char* function, uint64_t number, Arguments arguments = nullptr,
                 const void* parameters = nullptr, KeyId key = kNoKey);
void call_ends(const char* function);

// How a kernel was launched.
struct Launch {
  uint64_t blocks, threads;  // in all
  uint64_t registers;        // of a thread
  uint64_t shared_bytes;     // of a block
};
// Work that was launched with `number` ran from `begin_ns` to `end_ns`, by the device's clock.
// `type` is kernel, memcpy or memset; `launch` is a kernel's, where the vendor tells it.
void work_done(uint64_t number, const std::string& name, const char* type, uint64_t begin_ns,
               uint64_t end_ns, const Launch* launch = nullptr);

// The demangled name of a kernel.
std::string readable_kernel(const char* symbol);

// Samples of one instruction of a kernel that found a warp stalled.
struct Stall {
  const std::string* reason;
  uint64_t offset;  // offset of the instruction in its kernel, bytes
  uint32_t samples;
  bool is_latency;  // only samples in whose cycle nothing was issued
  uint64_t code;    // identifies the kernel's machine code
};
// The source line of an instruction of a kernel, where the vendor tells it.
using LineOf = SourceLine (*)(const std::string& symbol, const Stall& stall);
// Samples of a kernel that was launched with `number`.
void kernel_sampled(uint64_t number, const std::string& symbol, std::vector<Stall>& stalls,
                    LineOf line_of);
void samples_dropped(uint64_t count);
// Adds a note to the file, once.
void add_note(const std::string& sentence);

// Time of the collector in a call, excluded from the program's time.
class OwnTime {
 public:
  OwnTime();
  ~OwnTime();

 private:
  uint64_t since_;
};

// -- called by the collector

// Whether any device is followed now. `hindered` is the reason if an existing device is not. With
// `stalls`, instructions are sampled too; `unsampled` is the reason if those of a device are not.
bool start_devices(bool stalls, std::string& hindered, std::string& unsampled);
// Fetch the records of finished work.
void flush_devices();
void stop_devices();

struct Vendor {
  const char* name;
  bool (*is_present)();       // whether this machine, or this process, has the vendor's driver
  std::string (*probe)();         // the reason if its devices cannot be followed
  std::string (*probe_stalls)();  // the reason if their instructions cannot be sampled
  std::string (*start)(bool stalls);
  void (*flush)();
  void (*stop)();
};
extern const Vendor kNvidia, kAmd;

}  // namespace stepscope
