import "@xyflow/react/dist/base.css";
import {
  Background,
  Controls,
  type Edge,
  Handle,
  MarkerType,
  MiniMap,
  type Node,
  type NodeChange,
  type NodeProps,
  Position,
  ReactFlow,
} from "@xyflow/react";
import { ChevronsDownUp, ChevronsUpDown } from "lucide-react";
import { memo, useMemo, useState } from "react";
import type { GraphDocument, GraphNode } from "../api/documents";
import { lookOf, stepStatus } from "../elements/status";
import { usePreferences } from "../preferences/preferences";
import { type Direction, layOut } from "./layout";
import { useDirection } from "./useDirection";
import { type Drawing, type Line, type Shape, visibleGraph } from "./visibleGraph";
import "./graph.css";

interface Props {
  graph: GraphDocument;
  selected: string;
  onSelect: (path: string) => void;
}

interface BoxData extends Record<string, unknown> {
  shape: Shape;
  direction: Direction;
  onFold?: (id: string) => void;
}

type BoxNode = Node<BoxData>;

/** The steps and scopes of an execution, drawn from left to right, or downwards on a narrow screen. */
export function StepGraph({ graph, selected, onSelect }: Props) {
  const [folds, setFolds] = useState<ReadonlyMap<string, boolean>>(new Map());
  const { theme } = usePreferences();
  const direction = useDirection();
  const drawing = useMemo(() => visibleGraph(graph, folds), [graph, folds]);
  const structure = structureOf(drawing);
  // biome-ignore lint/correctness/useExhaustiveDependencies: places depend on the structure, not on each status
  const boxes = useMemo(() => layOut(drawing, direction), [structure, direction]);
  const height = Math.max(...[...boxes.values()].map((box) => box.y + box.height), 0);

  const nodes = drawing.shapes.map((shape): BoxNode => {
    const box = boxes.get(shape.id) ?? { x: 0, y: 0, width: 0, height: 0 };
    const isOpen = shape.kind === "scope" && !shape.isFolded;
    const onFold = (id: string) => setFolds(new Map(folds).set(id, !isOpen));
    return {
      id: shape.id,
      type: shape.kind,
      position: { x: box.x, y: box.y },
      width: box.width,
      height: box.height,
      zIndex: isOpen ? 0 : 2,
      selected: shape.kind === "step" && shape.node.path === selected,
      selectable: shape.kind === "step",
      focusable: shape.kind === "step",
      ariaLabel: labelOf(shape),
      data: { shape, direction, onFold },
    };
  });
  const statuses = new Map(drawing.shapes.map((shape) => [shape.id, statusOf(shape)]));
  const select = (changes: NodeChange<BoxNode>[]) => {
    for (const change of changes) {
      if (change.type !== "select" || !change.selected) continue;
      const shape = drawing.shapes.find(({ id }) => id === change.id);
      if (shape?.kind === "step") onSelect(shape.node.path);
    }
  };
  return (
    <div className="graph" style={{ height: Math.min(Math.max(height + 48, 160), 440) }}>
      <ReactFlow
        key={`${direction} ${structure.length}`}
        nodes={nodes}
        edges={drawing.lines.map((line) => edgeOf(line, statuses.get(line.from) ?? ""))}
        nodeTypes={NODE_TYPES}
        onNodesChange={select}
        colorMode={theme}
        fitView
        fitViewOptions={{ minZoom: 0.5, maxZoom: 1, padding: 0.04 }}
        minZoom={0.1}
        maxZoom={1.6}
        nodesDraggable={false}
        nodesConnectable={false}
        edgesFocusable={false}
        preventScrolling={false}
        zoomOnScroll={false}
        panOnScroll={false}
        deleteKeyCode={null}
        multiSelectionKeyCode={null}
        selectionKeyCode={null}
        proOptions={{ hideAttribution: true }}
      >
        <Background gap={20} size={1} />
        <Controls showInteractive={false} />
        {drawing.shapes.length > 15 && (
          <MiniMap pannable zoomable nodeClassName={miniClass} ariaLabel="Map of the graph" />
        )}
      </ReactFlow>
    </div>
  );
}

function structureOf({ shapes, lines }: Drawing): string {
  const names = shapes.map((shape) => `${shape.id}${shape.kind === "scope" && shape.isFolded ? "+" : ""}`);
  return [...names, ...lines.map(({ from, to }) => `${from}>${to}`)].join("\n");
}

function statusOf(shape: Shape): string {
  if (shape.kind === "step") return stepStatus(shape.node.status, shape.node.compensation_status, shape.node.blocked);
  return shape.kind === "scope" ? shape.scope.status : "";
}

function labelOf(shape: Shape): string {
  if (shape.kind === "rest") return `${shape.steps} more`;
  const name = shape.kind === "step" ? shape.node.name : shape.scope.label;
  return `${name}: ${lookOf(statusOf(shape)).word}`;
}

function miniClass(node: BoxNode): string {
  const isOpen = node.data.shape.kind === "scope" && !node.data.shape.isFolded;
  return isOpen ? "mini-scope" : `mini tone-${lookOf(statusOf(node.data.shape)).tone}`;
}

function edgeOf({ from, to, kind }: Line, status: string): Edge {
  const isUndo = kind === "compensation";
  const done = status === "succeeded" || status === "compensated" || status === "compensating";
  const colour = isUndo
    ? "var(--compensation)"
    : done && kind !== "failure"
      ? "var(--succeeded)"
      : "var(--control-border)";
  return {
    id: `${kind} ${from} ${to}`,
    source: from,
    target: to,
    sourceHandle: isUndo ? "undo-out" : "out",
    targetHandle: isUndo ? "undo-in" : "in",
    className: `edge-${kind}`,
    style: { stroke: colour },
    markerEnd: { type: MarkerType.ArrowClosed, color: colour, width: 16, height: 16 },
    ...(EDGE_LABELS[kind] ? { label: EDGE_LABELS[kind] } : {}),
    selectable: false,
    zIndex: 1,
  };
}

const EDGE_LABELS: Partial<Record<Line["kind"], string>> = { failure: "on failure", timeout: "on timeout" };

const TYPES: Record<string, string> = {
  human_approval: "approval",
  external_call: "external",
};

const StepBox = memo(function StepBox({ data, selected }: NodeProps<BoxNode>) {
  const { shape } = data;
  if (shape.kind !== "step") return null;
  const { node } = shape;
  const look = lookOf(statusOf(shape));
  return (
    <div className={`step-box tone-${look.tone}`} data-selected={selected} data-status={node.status}>
      <Ports direction={data.direction} />
      <look.icon size={16} aria-hidden="true" />
      <span className="step-name" title={node.name}>
        {node.name}
      </span>
      <span className="step-type">
        {node.kind === "fan_out" ? "fan-out" : (TYPES[node.step_type] ?? node.step_type)}
      </span>
      <span className="step-status">{detailOf(node, look.word)}</span>
    </div>
  );
});

function detailOf(node: GraphNode, word: string): string {
  if (node.clones) {
    const { total, by_status } = node.clones;
    const failed = by_status["failed"] ?? 0;
    return `${by_status["succeeded"] ?? 0} of ${total} succeeded${failed ? `, ${failed} failed` : ""}`;
  }
  const reason =
    node.blocked && node.status === "running" && word === "waiting"
      ? `waiting: ${node.blocked.replaceAll("_", " ")}`
      : word;
  return node.attempts > 1 ? `${reason} · attempt ${node.attempts}` : reason;
}

const ScopeBox = memo(function ScopeBox({ data }: NodeProps<BoxNode>) {
  const { shape, onFold } = data;
  if (shape.kind !== "scope") return null;
  const look = lookOf(shape.scope.status);
  const Icon = shape.isFolded ? ChevronsUpDown : ChevronsDownUp;
  return (
    <div className={`scope-box tone-${look.tone}`} data-folded={shape.isFolded}>
      <Ports direction={data.direction} />
      <div className="scope-head">
        <look.icon size={14} aria-hidden="true" />
        <strong>{shape.scope.label}</strong>
        <span className="secondary">{shape.isFolded ? `${shape.steps} steps` : shape.scope.mode}</span>
        <button
          type="button"
          className="nodrag"
          aria-expanded={!shape.isFolded}
          aria-label={`${shape.isFolded ? "Unfold" : "Fold"} ${shape.scope.label}`}
          onClick={() => onFold?.(shape.id)}
        >
          <Icon size={14} aria-hidden="true" />
        </button>
      </div>
    </div>
  );
});

function RestBox({ data }: NodeProps<BoxNode>) {
  return (
    <div className="step-box tone-inactive">
      <Ports direction={data.direction} />
      <span className="step-name">{data.shape.kind === "rest" ? data.shape.steps : 0} more</span>
      <span className="step-status">The table lists all of them.</span>
    </div>
  );
}

/** Where edges begin and end. Compensations use a side of their own, so that they do not hide what came before. */
function Ports({ direction }: { direction: Direction }) {
  const isAcross = direction === "LR";
  return (
    <>
      <Handle type="target" id="in" position={isAcross ? Position.Left : Position.Top} isConnectable={false} />
      <Handle type="source" id="out" position={isAcross ? Position.Right : Position.Bottom} isConnectable={false} />
      <Handle
        type="source"
        id="undo-out"
        position={isAcross ? Position.Bottom : Position.Right}
        isConnectable={false}
      />
      <Handle type="target" id="undo-in" position={isAcross ? Position.Bottom : Position.Right} isConnectable={false} />
    </>
  );
}

const NODE_TYPES = { step: StepBox, scope: ScopeBox, rest: RestBox };
