import type { LineShare } from "../api/batch_host";
import type { CostNode } from "../api/batch_types";

export type Metric = "time" | "memory";

/** A node's amount: ms or bytes. */
export function amount(node: CostNode, metric: Metric): number {
  return metric === "time" ? node.ms : node.bytes;
}

/** What is directly inside a node, the most first; nothing that takes nothing. */
export function parts(node: CostNode, metric: Metric): CostNode[] {
  return node.children
    .filter((one) => amount(one, metric) > 0)
    .sort((a, b) => amount(b, metric) - amount(a, metric));
}

/** The node at the end of a trail of child names; as far as it leads. */
export function follow(root: CostNode, trail: readonly string[]): CostNode[] {
  const nodes = [root];
  for (const key of trail) {
    const next = nodes[nodes.length - 1]!.children.find((one) => keyOf(one) === key);
    if (!next) break;
    nodes.push(next);
  }
  return nodes;
}

/** A module's time by the lines that call what is directly inside it. */
export function lineShares(node: CostNode): LineShare[] {
  const lines = new Map<string, LineShare>();
  for (const { file, line, ms } of node.children) {
    if (!file || !line) continue;
    const before = lines.get(`${file}:${line}`)?.share ?? 0;
    lines.set(`${file}:${line}`, { file, line, share: before + ms / (node.ms || 1) });
  }
  return [...lines.values()];
}

/** What tells a node from its siblings; operators of one name may stand on several lines. */
export function keyOf(node: CostNode): string {
  return `${node.kind}:${node.name}:${node.line ?? ""}`;
}
