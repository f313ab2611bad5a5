import type { GraphDocument, GraphNode, GraphScope } from "../api/documents";

/** A box in the drawing: a step, a scope with its contents, or a scope that is folded to one box. */
export type Shape =
  | { kind: "step"; id: string; parent: string; node: GraphNode }
  | { kind: "scope"; id: string; parent: string; scope: GraphScope; isFolded: boolean; steps: number }
  | { kind: "rest"; id: string; parent: string; steps: number };

export interface Line {
  from: string;
  to: string;
  kind: GraphDocument["edges"][number]["kind"];
}

export interface Drawing {
  shapes: Shape[];
  lines: Line[];
}

export const MOST_SHAPES = 300;

/** Chooses what is drawn: scopes are unfolded from the outside in, as long as the number of boxes stays in bounds.
 * `chosen` tells which scopes the reader folded or unfolded. */
export function visibleGraph(graph: GraphDocument, chosen: ReadonlyMap<string, boolean>, most = MOST_SHAPES): Drawing {
  const contents = new Contents(graph);
  const shapes: Shape[] = [];
  const places = new Map<string, string>(); // of every step and scope: the box that shows it
  const waiting = [""];
  let room = most;
  while (waiting.length) {
    const path = waiting.shift() ?? "";
    const children = contents.of(path);
    const fitting = children.length <= room ? children : children.slice(0, Math.max(0, room - 1));
    room -= fitting.length;
    for (const child of fitting) {
      places.set(child.id, child.id);
      if (child.node) {
        shapes.push({ kind: "step", id: child.id, parent: path, node: child.node });
        continue;
      }
      const size = contents.of(child.id).length;
      const isFolded = !(chosen.get(child.id) ?? true) || size > room || size === 0;
      const steps = contents.stepsIn(child.id);
      shapes.push({ kind: "scope", id: child.id, parent: path, scope: child.scope, isFolded, steps });
      if (isFolded) contents.within(child.id, (id) => places.set(id, child.id));
      else waiting.push(child.id);
    }
    if (fitting.length < children.length) {
      const rest = children.slice(fitting.length);
      const id = `${path}/…`;
      room -= 1;
      shapes.push({ kind: "rest", id, parent: path, steps: rest.length });
      for (const child of rest) {
        places.set(child.id, id);
        contents.within(child.id, (each) => places.set(each, id));
      }
    }
  }
  return { shapes, lines: linesBetween(graph, places) };
}

function linesBetween(graph: GraphDocument, places: ReadonlyMap<string, string>): Line[] {
  const lines = new Map<string, Line>();
  for (const edge of graph.edges) {
    const from = places.get(edge.from);
    const to = places.get(edge.to);
    if (from === undefined || to === undefined || from === to) continue;
    lines.set(`${edge.kind} ${from} → ${to}`, { from, to, kind: edge.kind });
  }
  return [...lines.values()];
}

type Child = { id: string; node: GraphNode; scope?: never } | { id: string; node?: never; scope: GraphScope };

/** What is inside each scope, in the order of the plan. */
class Contents {
  readonly #children = new Map<string, Child[]>();

  constructor(graph: GraphDocument) {
    for (const scope of graph.scopes) {
      if (scope.parent !== null) this.#add(scope.parent, { id: scope.path, scope });
    }
    for (const node of graph.nodes) this.#add(node.scope, { id: node.id, node });
  }

  of(path: string): readonly Child[] {
    return this.#children.get(path) ?? [];
  }

  stepsIn(path: string): number {
    return this.of(path).reduce((sum, child) => sum + (child.node ? 1 : this.stepsIn(child.id)), 0);
  }

  within(path: string, visit: (id: string) => void): void {
    for (const child of this.of(path)) {
      visit(child.id);
      this.within(child.id, visit);
    }
  }

  #add(path: string, child: Child): void {
    const known = this.#children.get(path);
    if (known) known.push(child);
    else this.#children.set(path, [child]);
  }
}
