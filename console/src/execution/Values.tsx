import { Braces } from "lucide-react";
import { useAttempts } from "../api/attempts";
import type { AttemptRow, ExecutionDocument } from "../api/documents";
import { JsonValue } from "../elements/JsonTree";
import { Empty, Failure, Loading } from "../elements/states";

/** Input, output, and the result of every step. */
export function Values({ execution }: { execution: ExecutionDocument }) {
  const attempts = useAttempts(execution.execution_id);
  if (attempts.isPending) return <Loading what="values" rows={6} />;
  if (attempts.error) return <Failure error={attempts.error} onRetry={() => void attempts.refetch()} />;
  const results = resultsOf(attempts.data.pages.flatMap((page) => page.items));
  return (
    <div className="values">
      <JsonValue value={execution.input} name="Input" />
      {execution.completed_at !== null && <JsonValue value={execution.output} name="Output" />}
      {results.length ? (
        <JsonValue value={Object.fromEntries(results.map((row) => [row.step_id, row.result]))} name="Results by step" />
      ) : (
        <Empty icon={Braces} title="No results yet">
          The result of each step appears here when the step succeeds.
        </Empty>
      )}
      {attempts.hasNextPage && (
        <button type="button" className="button" onClick={() => void attempts.fetchNextPage()}>
          {attempts.isFetchingNextPage ? "Loading…" : "Show more results"}
        </button>
      )}
    </div>
  );
}

/** The last result of each step. */
export function resultsOf(attempts: readonly AttemptRow[]): AttemptRow[] {
  const found = new Map<string, AttemptRow>();
  for (const row of attempts) {
    if (row.kind === "forward" && row.status === "succeeded" && row.result !== null) found.set(row.path, row);
  }
  return [...found.values()];
}
