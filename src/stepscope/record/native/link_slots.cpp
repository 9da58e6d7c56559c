#include "link_slots.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace stepscope {
namespace {

#if defined(__aarch64__)
constexpr uint32_t kData = R_AARCH64_GLOB_DAT, kCall = R_AARCH64_JUMP_SLOT, kPlain = R_AARCH64_ABS64;
#else
constexpr uint32_t kData = R_X86_64_GLOB_DAT, kCall = R_X86_64_JUMP_SLOT, kPlain = R_X86_64_64;
#endif

uintptr_t page_of(uintptr_t address) { return address & ~uintptr_t(getpagesize() - 1); }

int describe(dl_phdr_info* info, size_t, void* argument) {
  LoadedObject object{info->dlpi_name ? info->dlpi_name : "", info->dlpi_addr, UINTPTR_MAX, 0,
                      nullptr, 0, 0};
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    uintptr_t begin = info->dlpi_addr + part.p_vaddr, end = begin + part.p_memsz;
    if (part.p_type == PT_LOAD) {
      object.begin = std::min(object.begin, begin);
      object.end = std::max(object.end, end);
    } else if (part.p_type == PT_DYNAMIC) {
      object.dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
    } else if (part.p_type == PT_GNU_RELRO) {
      object.constant_begin = page_of(begin);
      object.constant_end = page_of(end);
    }
  }
  if (object.dynamic) static_cast<std::vector<LoadedObject>*>(argument)->push_back(object);
  return 0;
}

int count(dl_phdr_info* info, size_t, void* argument) {
  *static_cast<LoadCounts*>(argument) = {info->dlpi_adds, info->dlpi_subs};
  return 1;  // every object tells the same
}

// The tables of an object; glibc has made their addresses absolute, others have not.
struct Tables {
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Rela) *data = nullptr, *calls = nullptr;
  size_t data_count = 0, call_count = 0;
  explicit Tables(const LoadedObject& object) {
    for (const ElfW(Dyn)* entry = object.dynamic; entry->d_tag != DT_NULL; entry++) {
      uintptr_t at = entry->d_un.d_ptr;
      if (at < object.begin) at += object.base;
      switch (entry->d_tag) {
        case DT_SYMTAB: symbols = reinterpret_cast<const ElfW(Sym)*>(at); break;
        case DT_STRTAB: strings = reinterpret_cast<const char*>(at); break;
        case DT_RELA: data = reinterpret_cast<const ElfW(Rela)*>(at); break;
        case DT_JMPREL: calls = reinterpret_cast<const ElfW(Rela)*>(at); break;
        case DT_RELASZ: data_count = entry->d_un.d_val / sizeof(ElfW(Rela)); break;
        case DT_PLTRELSZ: call_count = entry->d_un.d_val / sizeof(ElfW(Rela)); break;
        default: break;
      }
    }
  }
};

}  // namespace

LoadCounts load_counts() {
  LoadCounts counts;
  dl_iterate_phdr(count, &counts);
  return counts;
}

std::vector<LoadedObject> loaded_objects() {
  std::vector<LoadedObject> objects;
  dl_iterate_phdr(describe, &objects);
  return objects;
}

Held::Held(const LoadedObject& object)
    : handle_(dlopen(object.path.empty() ? nullptr : object.path.c_str(), RTLD_LAZY | RTLD_NOLOAD)) {}

Held::~Held() {
  if (handle_) dlclose(handle_);
}

void each_slot(const LoadedObject& object, const std::function<void(const LinkSlot&)>& visit) {
  Tables tables(object);
  if (!tables.symbols || !tables.strings) return;
  auto visit_all = [&](const ElfW(Rela)* first, size_t count) {
    for (const ElfW(Rela)* entry = first; entry && entry < first + count; entry++) {
      uint32_t type = ELF64_R_TYPE(entry->r_info), symbol = ELF64_R_SYM(entry->r_info);
      if (!symbol || (type != kData && type != kCall && (type != kPlain || entry->r_addend))) continue;
      visit({tables.strings + tables.symbols[symbol].st_name,
             reinterpret_cast<uintptr_t*>(object.base + entry->r_offset), type == kCall});
    }
  };
  visit_all(tables.data, tables.data_count);
  visit_all(tables.calls, tables.call_count);
}

bool write_slot(const LoadedObject& object, uintptr_t* slot, uintptr_t value) {
  auto address = reinterpret_cast<uintptr_t>(slot);
  bool is_constant = address >= object.constant_begin && address < object.constant_end;
  auto page = reinterpret_cast<void*>(page_of(address));
  size_t bytes = size_t(getpagesize());
  if (is_constant && mprotect(page, bytes, PROT_READ | PROT_WRITE)) return false;
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  if (is_constant) mprotect(page, bytes, PROT_READ);
  return true;
}

}  // namespace stepscope
