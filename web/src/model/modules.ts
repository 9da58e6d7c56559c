import type { ModuleNode } from "../api/types";

/** One line of the module tree on screen. */
export interface TreeRow {
  node: ModuleNode;
  key: string;
  depth: number;
  opens: boolean;
  open: boolean;
  /** Whether it takes longest of its siblings. */
  hottest: boolean;
}

/** The time of a node on its longer side, forward and backward, ms a step. */
export function costOf(node: ModuleNode): number {
  return Math.max(cpuOf(node), deviceOf(node));
}

export function cpuOf(node: ModuleNode): number {
  return node.forward_cpu_ms + node.backward_cpu_ms;
}

export function deviceOf(node: ModuleNode): number {
  return node.forward_device_ms + node.backward_device_ms;
}

/** The rows of the tree that are on screen, given which nodes are open. */
export function treeRows(
  tree: ModuleNode[],
  open: ReadonlySet<string>,
  unfolded: ReadonlySet<string>,
): TreeRow[] {
  const rows: TreeRow[] = [];
  const walk = (nodes: ModuleNode[], depth: number, above: string): void => {
    const most = nodes.length > 1 ? Math.max(...nodes.map(costOf)) : Infinity;
    for (const node of nodes) {
      const key = `${above}/${node.path || node.name}`;
      const opens = node.children.length > 0 || Boolean(node.copies?.length);
      rows.push({
        node,
        key,
        depth,
        opens,
        open: open.has(key),
        hottest: costOf(node) === most && most > 0,
      });
      if (!open.has(key)) continue;
      const copies = node.copies ?? [];
      walk(unfolded.has(key) && copies.length ? copies : node.children, depth + 1, key);
    }
  };
  walk(tree, 0, "");
  return rows;
}

/** The keys of all nodes above those that hold a module, so that opening them shows it. */
export function waysTo(tree: ModuleNode[], module: number): string[] {
  const found: string[] = [];
  const walk = (nodes: ModuleNode[], above: string, way: string[]): boolean => {
    for (const node of nodes) {
      const key = `${above}/${node.path || node.name}`;
      if (node.modules.includes(module)) {
        found.push(...way);
        return true;
      }
      if (walk(node.children, key, [...way, key])) return true;
    }
    return false;
  };
  walk(tree, "", []);
  return found;
}
