/** Stages in the order of the server's numbers (`STAGES` of `stepscope.trace.schema`). */
export const STAGES = [
  "data_loading",
  "transfer",
  "forward",
  "loss",
  "zero_grad",
  "backward",
  "optimizer",
  "other",
] as const;
