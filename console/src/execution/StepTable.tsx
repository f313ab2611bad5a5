import type { GraphDocument } from "../api/documents";
import { Status, stepStatus } from "../elements/status";
import { Elapsed, Time } from "../elements/time";

/** The graph as a table, with what each step depends on. */
export function StepTable({ graph, onSelect }: { graph: GraphDocument; onSelect: (path: string) => void }) {
  const before = new Map<string, string[]>();
  for (const { from, to, kind } of graph.edges) {
    if (kind !== "compensation") before.set(to, [...(before.get(to) ?? []), from]);
  }
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard
    <section className="table-scroll step-table" aria-label="Table of steps" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col">Step</th>
            <th scope="col">Type</th>
            <th scope="col">After</th>
            <th scope="col">Status</th>
            <th scope="col">Clones</th>
            <th scope="col">Started</th>
            <th scope="col">Duration</th>
          </tr>
        </thead>
        <tbody>
          {graph.nodes.map((node) => (
            <tr key={node.id}>
              <td>
                <button type="button" className="fold" onClick={() => onSelect(node.path)}>
                  {node.id}
                </button>
              </td>
              <td>{node.step_type.replaceAll("_", " ")}</td>
              <td className="secondary">{before.get(node.id)?.join(", ") ?? "–"}</td>
              <td>
                <Status status={stepStatus(node.status, node.compensation_status, node.blocked)} />
              </td>
              <td>{node.clones ? `${node.clones.by_status["succeeded"] ?? 0} of ${node.clones.total}` : "–"}</td>
              <td>
                <Time at={node.started_at} />
              </td>
              <td>
                <Elapsed from={node.started_at} to={node.status === "pending" ? node.started_at : node.ended_at} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
