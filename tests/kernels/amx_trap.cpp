// Preloaded, lets a process run the machine code of AMX on a processor that has none: each of its instructions
// is an illegal one there, which the handler of that signal decodes and computes. (Encodings: Intel 64 and
// IA-32 Architectures Software Developer's Manual, volume 2, chapters 2 and 3 to 5.)
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstring>

#include "amx_emulated.h"

namespace {

using namespace radish;

constexpr int kRegisters[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                              REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

// An instruction with a three-byte VEX prefix.
struct Instruction {
  int opcode, prefix, reg, rm, vvvv;
  bool memory;
  char* address = nullptr;  // without the index
  int64_t stride = 0;       // the index, scaled
  int64_t length = 0;
};

Instruction decode(const uint8_t* code, const greg_t* registers) {
  const auto value = [&](int number) { return static_cast<int64_t>(registers[kRegisters[number]]); };
  const int x = code[1] & 0x40 ? 0 : 8, b = code[1] & 0x20 ? 0 : 8;  // stored inverted
  const int modrm = code[4], mode = modrm >> 6;
  Instruction i{code[3], code[2] & 3, modrm >> 3 & 7, modrm & 7, ~code[2] >> 3 & 15, mode != 3};
  const uint8_t* next = code + 5;
  int64_t address = 0, displacement_bytes = mode == 1 ? 1 : mode == 2 ? 4 : 0;
  bool relative = false;
  if (i.memory) {
    int base = i.rm;
    if (i.rm == 4) {
      const int sib = *next++;
      const int index = (sib >> 3 & 7) + x;
      base = sib & 7;
      if (index != 4) i.stride = value(index) << (sib >> 6);
      if (mode == 0 && base == 5) displacement_bytes = 4;
    } else if (mode == 0 && i.rm == 5) {
      displacement_bytes = 4;
      relative = true;
    }
    if (!(mode == 0 && base == 5)) address = value(base + b);
    if (displacement_bytes == 1) {
      address += static_cast<int8_t>(*next);
    } else if (displacement_bytes == 4) {
      int32_t displacement;
      std::memcpy(&displacement, next, sizeof displacement);
      address += displacement;
    }
    next += displacement_bytes;
  }
  i.length = next - code;
  if (relative) address += reinterpret_cast<int64_t>(next);
  i.address = reinterpret_cast<char*>(address);
  return i;
}

void configure(const char* memory) {
  uint16_t row_bytes[16];
  uint8_t rows[16];
  emulated::require(memory[0] == 1);  // the palette
  for (int i = 1; i < 16; ++i) emulated::require(memory[i] == 0);
  std::memcpy(row_bytes, memory + 16, sizeof row_bytes);
  std::memcpy(rows, memory + 48, sizeof rows);
  emulated::configure(rows, row_bytes);
}

bool execute(const Instruction& i) {
  enum { kNone, k66, kF3, kF2 };
  switch (i.opcode << 8 | i.prefix) {
    case 0x49 << 8 | kNone: return i.memory ? configure(i.address) : emulated::release(), true;
    case 0x49 << 8 | kF2: return emulated::zero(i.reg), true;
    case 0x4b << 8 | kF2: return emulated::load(i.reg, i.address, i.stride), true;
    case 0x4b << 8 | kF3: return emulated::store(i.reg, i.address, i.stride), true;
    case 0x5e << 8 | kF2: return emulated::dot_i8(i.reg, i.rm, i.vvvv), true;
    case 0x5c << 8 | kF3: return emulated::dot_bf16(i.reg, i.rm, i.vvvv), true;
    default: return false;
  }
}

void handle(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const uint8_t* code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
  const bool vex = code[0] == 0xc4 && (code[1] & 31) == 2 && (code[2] & 0x84) == 0;  // 0F38, W0, 128 bits
  const Instruction i = decode(code, registers);
  if (!vex || !execute(i)) std::abort();
  registers[REG_RIP] += i.length;
}

[[gnu::constructor]] void install() {
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
}

}  // namespace

// Grants tiles, as a system does that knows them.
extern "C" long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& x : a) x = va_arg(list, long);
  va_end(list);
  if (number == SYS_arch_prctl && a[0] == 0x1023 && a[1] == 18) return 0;
  long result;
  register long r10 asm("r10") = a[3];
  register long r8 asm("r8") = a[4];
  register long r9 asm("r9") = a[5];
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}
