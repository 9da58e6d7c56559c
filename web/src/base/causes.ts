import { words } from "./format";

/** Why a device does not compute: in the words of the report, and what that means. */
export const CAUSES: Record<string, [name: string, hint: string]> = {
  communication: [
    "exposed communication",
    "the device exchanges data with other devices and computes nothing",
  ],
  data: ["waiting for data", "the training loop is loading a batch"],
  synchronization: ["synchronization", "the CPU is blocked on the device"],
  host: ["host bound", "the CPU has not launched the next work yet"],
  unknown: ["cause unknown", "the trace does not have the CPU's side"],
  launch: ["launch latency", "the work is launched but has not started"],
  one_off: [
    "one-off costs",
    "the CPU sets up, loads, compiles or tears down, which later steps do not pay",
  ],
};

/** A cause's name, one of `CAUSES` or `outside_steps`, in the words of a reader. */
export function causeName(cause: string): string {
  return CAUSES[cause]?.[0] ?? words(cause);
}
