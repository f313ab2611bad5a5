import { useVirtualizer } from "@tanstack/react-virtual";
import { Copy } from "lucide-react";
import { useEffect, useRef } from "react";
import { useClones } from "../api/queries";
import { Empty, Failure, Loading } from "../elements/states";
import { Status, stepStatus } from "../elements/status";
import "./clones.css";

const ROW = 32;

/** The clones of a fan-out. Only the visible rows are in the page, and each page is read once. */
export function Clones({ id, fanOut, onStep }: { id: string; fanOut: string; onStep: (path: string) => void }) {
  const clones = useClones(id, fanOut);
  const rows = clones.data?.pages.flatMap((page) => page.items) ?? [];
  const area = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => area.current,
    estimateSize: () => ROW,
    overscan: 12,
  });
  const visible = virtual.getVirtualItems();
  const last = visible.at(-1)?.index ?? 0;
  const { hasNextPage, isFetchingNextPage, fetchNextPage } = clones;
  useEffect(() => {
    if (last >= rows.length - 1 && hasNextPage && !isFetchingNextPage) void fetchNextPage();
  }, [last, rows.length, hasNextPage, isFetchingNextPage, fetchNextPage]);
  if (clones.isPending) return <Loading what="clones" rows={6} />;
  if (clones.error) return <Failure error={clones.error} onRetry={() => void clones.refetch()} />;
  if (!rows.length) {
    return (
      <Empty icon={Copy} title="No clones yet">
        The fan-out creates its clones when its step is reached.
      </Empty>
    );
  }
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard
    <section className="clones" ref={area} aria-label={`Clones of ${fanOut}`} tabIndex={0}>
      <ul style={{ height: virtual.getTotalSize() }}>
        {visible.map(({ index, start }) => {
          const clone = rows[index];
          return (
            clone && (
              <li key={clone.path} style={{ transform: `translateY(${start}px)` }}>
                <button type="button" onClick={() => onStep(clone.path)}>
                  {clone.step_id}
                </button>
                <Status status={stepStatus(clone.status, clone.compensated ? "done" : null)} />
                <span className="secondary">{clone.attempts === 1 ? "1 attempt" : `${clone.attempts} attempts`}</span>
                <span className="clone-error">{clone.error?.summary}</span>
              </li>
            )
          );
        })}
      </ul>
    </section>
  );
}
