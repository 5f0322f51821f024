"""Modules without a test file of their own, by the tests that cover them."""

_COVERING = {
    "conformance/test_adapters.py": "weights/adapters",
    "conformance/test_posteriors.py": """
        fit/point posterior/base posterior/laplace posterior/point posterior/registry
        posterior/sparse
    """,
    "conformance/test_predictives.py": """
        outputs/likelihood/bernoulli outputs/predictive
        prediction/predict prediction/point
    """,
    "conformance/test_selectors.py": """
        select/last_layer select/named select/ranking select/registry
    """,
    "integration/test_answers_cli.py": """
        cli/options/source integrations/answers/folder runtime/writing/answers_note
    """,
    "integration/test_causal.py": "integrations/causal",
    "integration/test_cli.py": """
        cli/app cli/evaluate cli/finetune cli/fit cli/options/lists
        cli/options/budget cli/options/methods cli/options/select cli/options/text cli/predict
        cli/ramp cli/report
        workflows/fit_posterior workflows/ramp/swag workflows/text_task
    """,
    "integration/test_cli_bayestune.py": """
        cli/bayestune cli/options/chain_table report/many_records/chains report/one_record/tuned
        workflows/bayestune workflows/tuned_folder
    """,
    "integration/test_cli_outputs.py": "cli/options/outputs",
    "integration/test_cli_plan_verify.py": "cli/plan cli/verify integrations/skeleton",
    "integration/test_completion.py": "cli/completion/table",
    "integration/test_demo_data.py": "cli/demo integrations/demo_data workflows/demo",
    "integration/test_devices.py": "integrations/devices",
    "integration/test_doctor.py": "cli/doctor/command cli/doctor/findings",
    "integration/test_huggingface.py": """
        integrations/huggingface integrations/labels integrations/model_folder
    """,
    "integration/test_noted.py": "cli/options/noted",
    "integration/test_processes.py": "runtime/processes/whole_weights",
    "integration/test_run.py": """
        cli/run/command cli/run/ready workflows/run/pipeline
        workflows/run/ready_folder workflows/run/task_model workflows/run/text_base
        workflows/run/training
    """,
    "integration/test_serve.py": "cli/serve/command",
    "integration/test_sharded_fit.py": "integrations/distributed",
    "integration/test_trainer.py": "trainer/bayes trainer/swag",
    "integration/test_train_sparse.py": """
        cli/train_sparse integrations/arrays report/drawing/connectivity sparse/architectures
    """,
    "integration/test_tuned_elsewhere.py": "integrations/peft_adapter",
    "unit/curvature/test_kronecker.py": """
        curvature/dense curvature/factors/factor_diagonals curvature/factors/operator
        curvature/moments
        curvature/base curvature/grouped_jacobian curvature/operators curvature/sides
        posterior/output_covariance weights/blocks
    """,
    "unit/decide/test_rules.py": "decide/rule runtime/writing/rules_note",
    "unit/evaluate/test_scores.py": """
        evaluate/association evaluate/calibration evaluate/checks evaluate/detection
        evaluate/intervals evaluate/summary
    """,
    "unit/fit/bayestune/test_langevin.py": """
        fit/bayestune/chain fit/bayestune/published fit/bayestune/step fit/data_size
    """,
    "unit/fit/calibration/test_precision.py": """
        fit/calibration/calibrate fit/calibration/evidence
        fit/calibration/groups
    """,
    "unit/fit/calibration/test_grid_search.py": "fit/calibration/brent",
    "unit/fit/test_finetune.py": "fit/epochs fit/subset_adamw fit/trained_weights fit/training_run",
    "unit/fit/test_laplace.py": "errors outputs/problem types",
    "unit/fit/test_laplace_many.py": "posterior/variance_table",
    "unit/fit/test_ssvi.py": "sparse/build sparse/flops sparse/network",
    "unit/fit/test_swag.py": "fit/calibration/samples fit/sgd posterior/swag",
    "unit/integrations/test_text.py": "integrations/reading/columns",
    "unit/integrations/test_answers.py": """
        integrations/answers/answer_model integrations/answers/asking
        integrations/answers/causal_parts integrations/answers/choice_tokens
        integrations/answers/loader integrations/answers/template
    """,
    "unit/outputs/likelihood/test_gaussian.py": """
        outputs/likelihood/base outputs/likelihood/description
    """,
    "unit/planning/test_plan.py": """
        curvature/dry_run planning/settings planning/timing posterior/cost/model
        posterior/cost/laplace posterior/cost/swag runtime/memory
    """,
    "unit/runtime/test_shadow.py": "runtime/keeping/swap",
    "unit/posterior/test_store.py": "posterior/operator_store runtime/record sparse/store",
    "integration/test_sparse_study.py": "report/many_records/trials",
    "unit/report/many_records/test_aggregate.py": """
        report/fields report/many_records/figures report/many_records/findings
        report/many_records/page report/names
    """,
    "unit/report/one_record/test_decisions.py": """
        report/one_record/choice report/one_record/decision_figures
        report/one_record/decision_tables report/one_record/decision_verdict
    """,
    "unit/report/one_record/test_page.py": """
        report/drawing/axes report/drawing/palette report/drawing/svg report/formats
        report/one_record/figures report/one_record/subset_picture report/one_record/tables
        report/one_record/verdict
    """,
    "unit/report/ramp/test_page.py": "report/ramp/figures report/ramp/layers",
    "unit/select/scores/test_passes.py": """
        select/scores/activation select/scores/curvature select/scores/magnitude
        select/scores/random select/scores/squared_gradient select/scores/variance
        workflows/variances
    """,
    "unit/select/test_sparse_kfac.py": "select/modules select/weights",
    "unit/sklearn/test_tables.py": """
        sklearn/estimators sklearn/fitting sklearn/modules
    """,
    "unit/sklearn/test_texts.py": "sklearn/text_rows",
    "unit/serving/test_app.py": "serving/openapi serving/receiving serving/refusals",
    "unit/serving/test_checking.py": "serving/form",
    "unit/sparse/test_layers.py": "sparse/matmul sparse/pattern",
    "unit/sparse/test_rewire.py": "sparse/budgets sparse/grow",
    "unit/runtime/sites/test_attention.py": "runtime/sites/rewrites runtime/sites/site",
    "unit/weights/affine/test_coverage.py": """
        weights/affine/attention weights/affine/experts weights/affine/kind
        weights/affine/kinds weights/affine/layer weights/affine/recurrent
    """,
    "unit/weights/test_subset.py": "weights/origin",
    "unit/weights/test_vector.py": "runtime/checkpoint runtime/loader",
    "unit/workflows/bayesify/test_one_call.py": """
        workflows/bayesify/candidates workflows/bayesify/crossfit workflows/bayesify/sources
        workflows/bayesify/timing
    """,
    "unit/workflows/ramp/test_laplace.py": """
        workflows/ramp/levels workflows/ramp/points workflows/ramp/schemes workflows/ramp/scorer
    """,
    "unit/workflows/predictor/test_making.py": "workflows/predictor/describing",
    "unit/workflows/predictor/test_packing.py": "cli/pack/command",
    "unit/workflows/predictor/test_pushing.py": """
        cli/push/command integrations/sharing/hub workflows/predictor/loading
    """,
    "unit/workflows/predictor/test_saving.py": """
        integrations/sharing/base_note integrations/sharing/based_model
        workflows/predictor/card
    """,
    "unit/workflows/test_verify.py": """
        runtime/text_table workflows/exact_factors workflows/exact_jacobian
    """,
    "integration/test_study_kinds.py": "prediction/dropout",
    "integration/test_start.py": "__main__",
}
_COVERING_STUDIES = {
    "integration/test_choices.py": "methods/uci_choices",
    "integration/test_ray.py": "engine/workers/ray_cluster",
    "integration/test_sparse_study.py": """
        data/images kinds/sparse_training methods/mixtures
    """,
    "integration/test_study_answers.py": """
        data/answers kinds/answers/ensemble kinds/answers/point kinds/answers/posterior
        methods/answer_models
    """,
    "integration/test_study_decisions.py": """
        kinds/decisions/images kinds/decisions/labels kinds/decisions/text
        methods/decisions/methods methods/decisions/networks
    """,
    "integration/test_study_kinds.py": """
        kinds/constant kinds/dropout kinds/ensemble kinds/finetune
        kinds/laplace kinds/recipe kinds/scales kinds/swag kinds/tuning kinds/uci_map
        kinds/uci_posterior kinds/weight_samples methods/text_models methods/tuned_text
        methods/tuning_methods
    """,
    "unit/studies/engine/test_run.py": """
        engine/cell engine/data_files engine/study engine/workers/base
        engine/workers/local
    """,
    "unit/studies/test_statistics.py": "methods/task_scores",
}
COVERED_ELSEWHERE = {
    f"{package}/{module}.py": tests
    for package, covering in (
        ("smidgen", _COVERING),
        ("smidgen_studies", _COVERING_STUDIES),
    )
    for tests, modules in covering.items()
    for module in modules.split()
}
