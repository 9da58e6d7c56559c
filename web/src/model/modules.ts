import type { ModuleNode } from "../api/types";

/** The time of a node on its longer side, ms a step. */
export function costOf(node: ModuleNode): number {
  return Math.max(cpuOf(node), deviceOf(node));
}

export function cpuOf(node: ModuleNode): number {
  return node.forward_cpu_ms + node.backward_cpu_ms + node.outside_cpu_ms;
}

export function deviceOf(node: ModuleNode): number {
  return node.forward_device_ms + node.backward_device_ms + node.outside_device_ms;
}

/** The nodes that take longest of their siblings. */
export function hottestOf(tree: readonly ModuleNode[]): ReadonlySet<ModuleNode> {
  const hottest = new Set<ModuleNode>();
  const walk = (nodes: readonly ModuleNode[]): void => {
    const most = Math.max(...nodes.map(costOf));
    if (nodes.length > 1 && most > 0)
      nodes.filter((one) => costOf(one) === most).forEach((one) => hottest.add(one));
    nodes.forEach((one) => walk(one.children));
  };
  walk(tree);
  return hottest;
}

/** Each module that a node stands for. */
function copiesOf(node: ModuleNode): readonly ModuleNode[] {
  return node.copies.length ? node.copies : [node];
}

/** The module without others inside that takes longest, each copy of a folded block on its own. */
export function slowestLayer(
  tree: readonly ModuleNode[],
  cost: (node: ModuleNode) => number,
): ModuleNode | undefined {
  const layers = (nodes: readonly ModuleNode[]): ModuleNode[] =>
    nodes.flatMap((node) => (node.children.length ? layers(node.children) : copiesOf(node)));
  const slowest = layers(tree).reduce<ModuleNode | undefined>(
    (most, one) => (most && cost(most) >= cost(one) ? most : one),
    undefined,
  );
  return slowest && cost(slowest) > 0 ? slowest : undefined;
}

/**
 * The leaf modules, each copy of a folded block on its own, and what runs in the other modules
 * outside of those inside them: together they are the whole tree.
 */
export function leavesOf(tree: readonly ModuleNode[]): ModuleNode[] {
  return tree.flatMap((node) => {
    if (node.children.length) return [...ownOf(node), ...leavesOf(node.children)];
    return copiesOf(node).map((one) => ({ ...one, name: one.path || one.name }));
  });
}

const OWN = [
  "forward_cpu_ms",
  "forward_device_ms",
  "backward_cpu_ms",
  "backward_device_ms",
  "outside_cpu_ms",
  "outside_device_ms",
] as const;
const NOTHING_MS = 1e-5; // what the rounding of sums leaves

/** What a module does itself, none if that is nothing. */
function ownOf(node: ModuleNode): ModuleNode[] {
  const own = {
    ...node,
    name: `${node.path || node.name} (own)`,
    children: [],
    parameters: ownParameters(node),
  };
  for (const key of OWN) {
    const inside = node.children.reduce((total, one) => total + one[key], 0);
    own[key] = Math.max(node[key] - inside, 0);
  }
  return costOf(own) > NOTHING_MS ? [own] : [];
}

function ownParameters({ parameters, children }: ModuleNode): number | null {
  const inside = children.reduce((total, one) => total + (one.parameters ?? 0), 0);
  return parameters === null ? null : parameters - inside;
}
